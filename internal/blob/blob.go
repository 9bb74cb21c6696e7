// Package blob says how a blob is named and how it is checked: the reference a Director sends and the digest string
// in it. It does not depend on a store, so that the packages that install archives and the packages that fetch them
// can share it.
package blob

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"cambium/internal/secret"
)

// Ref names a blob. A signed URL is used when there is one, the ID otherwise.
type Ref struct {
	ID        string
	SignedURL secret.URL
	Headers   map[string]secret.String // sent verbatim with a signed URL; may hold encryption keys
	Digest    Digest
}

// Opener yields the content of a blob. The reader fails instead of ending when the content does
// not match the digest, so a consumer that saw io.EOF has seen the right bytes.
type Opener interface {
	Open(ctx context.Context, ref Ref) (io.ReadCloser, error)
}

// ErrNoDigest has the text that callers of the agent look for.
var ErrNoDigest = errors.New("no digest algorithm found. supported algorithms: sha1, sha256, sha512")

// Mismatch means that content and digest differ. Operators and tools search for its first words.
type Mismatch struct{ Algorithm, Want, Got string }

func (m *Mismatch) Error() string {
	return fmt.Sprintf("Checksum mismatch: expected %s %s, got %s", m.Algorithm, m.Want, m.Got)
}

// algorithms are ordered by strength.
var algorithms = []struct {
	name string
	new  func() hash.Hash
}{
	{"sha512", sha512.New},
	{"sha256", sha256.New},
	{"sha1", sha1.New},
}

type sum struct{ algorithm, value string }

// Digest is one or more checksums of the same content, as in "abc…;sha256:def…". The zero value
// holds none.
type Digest struct{ sums []sum }

// ParseDigest reads a digest string. A checksum without a name is a sha1, and names match in any case.
// Unknown algorithms are kept beside a known one and are an error alone, since nothing could be checked;
// the same algorithm twice is an error.
func ParseDigest(text string) (Digest, error) {
	if text == "" {
		return Digest{}, ErrNoDigest
	}
	var d Digest
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ";") {
		algorithm, value, named := strings.Cut(part, ":")
		if !named {
			algorithm, value = "sha1", part
		}
		algorithm = strings.ToLower(algorithm)
		if !alphanumeric(algorithm) || !alphanumeric(value) {
			return Digest{}, errors.New("digest: a checksum consists of letters and digits, optionally after a name and a colon")
		}
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

func alphanumeric(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// String prints the checksums in their order, sha1 without its name. Directory names derive
// from this text, so it must not change.
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

// Check computes the strongest checksum of a digest over what is written to it.
type Check struct {
	hash            hash.Hash
	algorithm, want string
}

// Check returns a check by the strongest algorithm that is known, or ErrNoDigest.
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

// Err is nil when everything written matches.
func (c *Check) Err() error {
	got := hex.EncodeToString(c.hash.Sum(nil))
	if !strings.EqualFold(got, c.want) {
		return &Mismatch{Algorithm: c.algorithm, Want: c.want, Got: got}
	}
	return nil
}

// Verify wraps r so that reading to the end fails when the content does not match d.
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

// Sums computes the checksums that the agent hands out.
type Sums struct {
	sha1, sha512 hash.Hash
	size         int64
}

// NewSums returns sums over nothing yet.
func NewSums() *Sums { return &Sums{sha1: sha1.New(), sha512: sha512.New()} }

func (s *Sums) Write(p []byte) (int, error) {
	s.sha1.Write(p)
	s.sha512.Write(p)
	s.size += int64(len(p))
	return len(p), nil
}

// Size is the number of bytes written.
func (s *Sums) Size() int64 { return s.size }

// SHA1 returns the digest that a classic upload reports: the bare hexadecimal sum.
func (s *Sums) SHA1() string { return hex.EncodeToString(s.sha1.Sum(nil)) }

// SHA512 returns the digest that a log bundle reports.
func (s *Sums) SHA512() string { return "sha512:" + hex.EncodeToString(s.sha512.Sum(nil)) }

// Multi returns both digests, as an upload to a signed URL reports them.
func (s *Sums) Multi() string { return s.SHA1() + ";" + s.SHA512() }
