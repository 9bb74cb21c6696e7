package iaas

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Class is the class of an object. It is also the name of the directory with the records.
type Class string

// The classes.
const (
	Stemcells Class = "stemcells"
	VMs       Class = "vms"
	Disks     Class = "disks"
	Snapshots Class = "snapshots"
	Networks  Class = "networks"
)

// classes has, for each class, the prefix of CIDs, the noun for an object, and the kind of the error for a missing
// object.
var classes = map[Class]struct {
	prefix, noun string
	missing      Kind
}{
	Stemcells: {"sc-", "stemcell", CloudError},
	VMs:       {"vm-", "VM", VMNotFound},
	Disks:     {"d-", "disk", DiskNotFound},
	Snapshots: {"snap-", "snapshot", CloudError},
	Networks:  {"net-", "network", NetworkNotFound},
}

// missing returns the error for an object that does not exist. name is the caller's name of it.
func (c Class) missing(name string) error {
	return Failf(classes[c].missing, "there is no %s %.100s", classes[c].noun, name)
}

// CID identifies an object. It is the prefix of its class and 18 hexadecimal digits. The zero value identifies no
// object.
type CID struct {
	class  Class
	random [9]byte
}

// newCID returns a CID that was not used before. The CID of a disk is as long as a virtio serial number may be, so that
// it is unique there, too.
func newCID(class Class) CID {
	c := CID{class: class}
	_, _ = rand.Read(c.random[:]) // never fails, see its documentation
	return c
}

// ParseCID parses a CID of a class. It returns the error for a missing object if text is not a CID of that class.
func ParseCID(class Class, text string) (CID, error) {
	c := CID{class: class}
	digits, ok := strings.CutPrefix(text, classes[class].prefix)
	if !ok || len(digits) != hex.EncodedLen(len(c.random)) || strings.ToLower(digits) != digits {
		return CID{}, class.missing(fmt.Sprintf("%q", text))
	}
	if _, err := hex.Decode(c.random[:], []byte(digits)); err != nil {
		return CID{}, class.missing(fmt.Sprintf("%q", text))
	}
	return c, nil
}

// digits returns the hexadecimal digits after the prefix.
func (c CID) digits() string { return hex.EncodeToString(c.random[:]) }

func (c CID) String() string {
	if c == (CID{}) {
		return ""
	}
	return classes[c.class].prefix + c.digits()
}

// MarshalText returns the CID as callers know it.
func (c CID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses a CID of any class.
func (c *CID) UnmarshalText(text []byte) (err error) {
	*c = CID{}
	if len(text) == 0 {
		return nil
	}
	for class, is := range classes {
		if strings.HasPrefix(string(text), is.prefix) {
			*c, err = ParseCID(class, string(text))
			return err
		}
	}
	return fmt.Errorf("%.100q is not a CID", text)
}

// Digest is the SHA-256 of an image, which is also its name.
type Digest struct{ sum [sha256.Size]byte }

func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return hex.EncodeToString(d.sum[:])
}

// MarshalText returns the digest in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a digest in hexadecimal.
func (d *Digest) UnmarshalText(text []byte) error {
	*d = Digest{}
	if len(text) == 0 {
		return nil
	}
	if len(text) != hex.EncodedLen(len(d.sum)) {
		return fmt.Errorf("%.100q is not a SHA-256 in hexadecimal", text)
	}
	if _, err := hex.Decode(d.sum[:], text); err != nil {
		return fmt.Errorf("%.100q is not a SHA-256 in hexadecimal", text)
	}
	return nil
}

// Size is the size of a disk in MiB, from 1 to maxDisk.
type Size int

// maxDisk is 64 TiB, so that calculations with sizes do not overflow.
const maxDisk = 64 << 20

// UnmarshalJSON parses a size.
func (s *Size) UnmarshalJSON(data []byte) error {
	var n int
	if err := json.Unmarshal(data, &n); err != nil || n < 1 || n > maxDisk {
		return fmt.Errorf("disk size %.50s: want 1 to %d MiB", data, maxDisk)
	}
	*s = Size(n)
	return nil
}

func (s Size) bytes() int64 { return int64(s) << 20 }
