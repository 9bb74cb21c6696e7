// Command agent is the BOSH-compatible VM agent. This package only wires: flags, signals,
// logging, and the concrete types that the other packages know as interfaces.
package main

import "fmt"

var version = "unknown"

func main() { fmt.Println(version) }
