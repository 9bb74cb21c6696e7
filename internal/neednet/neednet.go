// Package neednet holds the one error by which a settings source says that it cannot answer
// before the machine has a network. It is a leaf so that sources can return it and bootstrap
// can act on it without importing each other.
package neednet

import "errors"

// Err means: bring up a minimal network, then ask this source again. Sources never configure
// one themselves.
var Err = errors.New("needs network")
