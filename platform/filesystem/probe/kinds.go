package probe

import (
	"slices"

	"cambium/internal/managedfs"
)

// Managed reports whether the agent can create, mount and grow this kind of file system.
func (k Kind) Managed() bool {
	_, managed := managedfs.Find(string(k))
	return managed
}

// ExtOrXFS reports whether the kind shows that an ext or xfs is or was there, even a damaged one.
func (k Kind) ExtOrXFS() bool {
	return slices.Contains([]Kind{extFamily, Ext2, Ext3, Ext4, JBD, XFS, Unknown}, k)
}

// HasBootSector reports whether the first sector of this kind may end like a DOS partition table.
func (k Kind) HasBootSector() bool {
	switch k {
	case FAT, NTFS, ExFAT, XFS, Ext2, Ext3, Ext4:
		return true
	}
	return false
}

const smallestGrowth = 1 << 20

// WorthGrowing reports whether a file system is to be grown from length to the size of its device. Unknown sizes are 0.
func WorthGrowing(length, device int64) bool { return length > 0 && device-length >= smallestGrowth }
