// Package vm tests the real binary in virtual machines of the lab, with a real kernel, udev, disks that are attached
// and detached, and power cuts.
package vm
