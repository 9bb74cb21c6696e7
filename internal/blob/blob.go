// Package blob defines how a blob is named and checked: the reference that a Director sends, and its digest. It depends
// on no store, because packages that install archives and packages that fetch them share it.
package blob

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"strings"

	"cambium/internal/secret"
)

// Ref identifies a blob by its signed URL or, if that is empty, by its ID.
type Ref struct {
	ID        string
	SignedURL secret.URL
	Headers   map[string]secret.String // sent unchanged with a signed URL; may contain encryption keys
	Digest    Digest
}

// Opener opens a blob. If the content does not match the digest, the reader returns an error and not io.EOF at the end.
type Opener interface {
	Open(ctx context.Context, ref Ref) (io.ReadCloser, error)
}

// ErrNoDigest has the text that callers of the agent search for.
var ErrNoDigest = errors.New("no digest algorithm found. supported algorithms: sha1, sha256, sha512")

// Mismatch means that content and digest differ. Operators and tools search for the beginning of its text.
type Mismatch struct{ Algorithm, Want, Got string }

func (m *Mismatch) Error() string {
	return fmt.Sprintf("Checksum mismatch: expected %s %s, got %s", m.Algorithm, m.Want, m.Got)
}

// algorithms lists the algorithms, the strongest first.
var algorithms = []struct {
	name string
	new  func() hash.Hash
}{
	{"sha512", sha512.New},
	{"sha256", sha256.New},
	{"sha1", sha1.New},
}

type sum struct{ algorithm, value string }

// Digest is one or more checksums of the same content, as in "abc…;sha256:def…". The zero value has none.
type Digest struct{ sums []sum }

// checksum matches one checksum, with the name of its algorithm if it has one.
var checksum = regexp.MustCompile(`^(?:([a-zA-Z0-9]+):)?([a-zA-Z0-9]+)$`)

// ParseDigest parses a digest. A checksum without a name is sha1. The case of names does not matter. Unknown algorithms
// are accepted beside a known one. It is an error if all are unknown, or if an algorithm occurs twice.
func ParseDigest(text string) (Digest, error) {
	if text == "" {
		return Digest{}, ErrNoDigest
	}
	var d Digest
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ";") {
		fields := checksum.FindStringSubmatch(part)
		if fields == nil {
			return Digest{}, errors.New(
				"digest: a checksum consists of letters and digits, optionally after a name and a colon")
		}
		algorithm, value := cmp.Or(strings.ToLower(fields[1]), "sha1"), fields[2]
		if seen[algorithm] {
			return Digest{}, fmt.Errorf("digest: more than one %s checksum", algorithm)
		}
		seen[algorithm] = true
		d.sums = append(d.sums, sum{algorithm, value})
	}
	if _, err := d.Check(); err != nil {
		return Digest{}, err
	}
	return d, nil
}

// String formats the checksums in their original order, sha1 without a name. Names of directories depend on this
// format, so it must not change.
func (d Digest) String() string {
	parts := make([]string, 0, len(d.sums))
	for _, s := range d.sums {
		if s.algorithm == "sha1" {
			parts = append(parts, s.value)
		} else {
			parts = append(parts, s.algorithm+":"+s.value)
		}
	}
	return strings.Join(parts, ";")
}

// Check computes a checksum of what is written to it.
type Check struct {
	hash            hash.Hash
	algorithm, want string
}

// Check returns a check with the strongest known algorithm, or ErrNoDigest.
func (d Digest) Check() (*Check, error) {
	for _, a := range algorithms {
		for _, s := range d.sums {
			if s.algorithm == a.name {
				return &Check{hash: a.new(), algorithm: a.name, want: s.value}, nil
			}
		}
	}
	return nil, ErrNoDigest
}

func (c *Check) Write(p []byte) (int, error) { return c.hash.Write(p) }

// Err returns nil if everything written matches the digest.
func (c *Check) Err() error {
	got := hex.EncodeToString(c.hash.Sum(nil))
	if !strings.EqualFold(got, c.want) {
		return &Mismatch{Algorithm: c.algorithm, Want: c.want, Got: got}
	}
	return nil
}

// Verify wraps r. At its end the returned reader fails if the content does not match d.
func (d Digest) Verify(r io.ReadCloser) (io.ReadCloser, error) {
	check, err := d.Check()
	if err != nil {
		return nil, err
	}
	return &verified{ReadCloser: r, check: check}, nil
}

type verified struct {
	io.ReadCloser
	check *Check
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	_, _ = v.check.Write(p[:n])
	if err == io.EOF {
		if bad := v.check.Err(); bad != nil {
			return n, bad
		}
	}
	return n, err
}

// Sums computes the checksums of blobs that the agent uploads.
type Sums struct {
	sha1, sha512 hash.Hash
	size         int64
}

// NewSums returns the sums of nothing.
func NewSums() *Sums { return &Sums{sha1: sha1.New(), sha512: sha512.New()} }

func (s *Sums) Write(p []byte) (int, error) {
	s.sha1.Write(p)
	s.sha512.Write(p)
	s.size += int64(len(p))
	return len(p), nil
}

// Size returns the number of bytes written.
func (s *Sums) Size() int64 { return s.size }

// SHA1 returns the digest for a plain upload: only the hexadecimal sum.
func (s *Sums) SHA1() string { return hex.EncodeToString(s.sha1.Sum(nil)) }

// SHA512 returns the digest for a log bundle.
func (s *Sums) SHA512() string { return "sha512:" + hex.EncodeToString(s.sha512.Sum(nil)) }

// BothDigests returns both digests, for an upload to a signed URL.
func (s *Sums) BothDigests() string { return s.SHA1() + ";" + s.SHA512() }
