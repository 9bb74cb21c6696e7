// Package herd tests thousands of agents with a cluster of NATS servers. The agents use the real bus client, many in
// one process. The servers are separate processes. The tests also play what a Director does, such as writing the file
// of users.
package herd
