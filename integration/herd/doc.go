// Package herd tests what thousands of agents do to a cluster of NATS servers: agents with the real bus client, many in
// one process, servers in processes of their own, and what a Director adds around them, such as its file of users.
package herd
