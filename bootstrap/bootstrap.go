// Package bootstrap takes a machine from "the agent has started" to "the Director can talk to it". Steps is the table
// of what that takes; package engine runs it, and plans it for agent plan. A row names a function that returns the
// desired states, each with its domain; Machine has all domains. Only rows that start something have code of their
// own. Loop runs the table until the machine is ready, Announcer carries the verdict to people; package fetch asks
// the settings sources.
package bootstrap
