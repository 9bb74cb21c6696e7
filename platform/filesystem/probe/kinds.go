package probe

import (
	"slices"
	"strings"
)

// managed are the file systems that the agent makes, mounts and grows. A new one is an entry here, a row of
// managedKinds in package filesystem, which has its functions, a signature, and a reader of its superblock in readers.
var managed = []Kind{Ext4, XFS}

// Managed reports a file system that the agent can make, mount and grow.
func (k Kind) Managed() bool { return slices.Contains(managed, k) }

// ManagedNames lists the managed kinds for messages.
func ManagedNames() string {
	var names []string
	for _, k := range managed {
		names = append(names, string(k))
	}
	return strings.Join(names, " and ")
}

// ExtOrXFS reports what shows that ext or xfs is or was there, a damaged one included.
func (k Kind) ExtOrXFS() bool {
	return slices.Contains([]Kind{extFamily, Ext2, Ext3, Ext4, JBD, XFS, Unknown}, k)
}

// BootSector reports a kind whose first sector may end like a DOS partition table.
func (k Kind) BootSector() bool {
	switch k {
	case FAT, NTFS, ExFAT, BitLocker, XFS, Ext2, Ext3, Ext4:
		return true
	}
	return false
}

const smallestGrowth = 1 << 20

// WorthGrowing says whether a file system of this length is grown to a device of that size. Sizes that are not known
// are 0.
func WorthGrowing(length, device int64) bool { return length > 0 && device-length >= smallestGrowth }
