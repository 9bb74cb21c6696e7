// Package vm holds the tests of the real binary in virtual machines of the lab: real kernel,
// udev, disks that come and go, power cuts.
package vm
