// Package bootstrap takes a machine from "the agent has started" to "the Director can talk to it".
// Steps is the table of what that takes; package engine runs it. Each row has a function that does
// it and one that says what it would change, which agent plan calls: both are methods of Machine,
// the parts of the platform that the boot works on. Loop runs the table until the machine is ready,
// Announcer carries the verdict to people; package fetch asks the settings sources.
package bootstrap
