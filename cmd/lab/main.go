// Command lab makes machines with the agent in them on one Linux host, for tests, for the demo
// and for people who develop CPIs, stemcells or the agent.
package main

import "fmt"

var version = "unknown"

func main() { fmt.Println(version) }
