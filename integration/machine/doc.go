// Package machine holds the tests of the real binary under a real systemd, in machines of the
// lab. Each test makes a lab of its own and removes it, also when it fails.
package machine
