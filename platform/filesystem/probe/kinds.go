package probe

import (
	"slices"

	"cambium/internal/managedfs"
)

// Managed reports a file system that the agent can make, mount and grow.
func (k Kind) Managed() bool {
	_, managed := managedfs.Find(string(k))
	return managed
}

// ExtOrXFS reports what shows that ext or xfs is or was there, a damaged one included.
func (k Kind) ExtOrXFS() bool {
	return slices.Contains([]Kind{extFamily, Ext2, Ext3, Ext4, JBD, XFS, Unknown}, k)
}

// BootSector reports a kind whose first sector may end like a DOS partition table.
func (k Kind) BootSector() bool {
	switch k {
	case FAT, NTFS, ExFAT, XFS, Ext2, Ext3, Ext4:
		return true
	}
	return false
}

const smallestGrowth = 1 << 20

// WorthGrowing says whether a file system of this length is grown to a device of that size. Sizes that are not known
// are 0.
func WorthGrowing(length, device int64) bool { return length > 0 && device-length >= smallestGrowth }
