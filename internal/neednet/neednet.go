// Package neednet defines the error by which a settings source says that it needs a network. Sources return it and
// bootstrap handles it, so that neither imports the other.
package neednet

import "errors"

// Err means that the caller must bring up a minimal network and ask the source again. Sources never configure a
// network.
var Err = errors.New("needs network")
