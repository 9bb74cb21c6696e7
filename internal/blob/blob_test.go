package blob

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	helloSHA1   = "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"
	helloSHA512 = "sha512:9b71d224bd62f3785d96d46ad3ea3d73319bfbc2890caadae2dff72519673ca72323c3d99ba5c11d7c7acc6e14b8c5da0c4663475c2e5c3adef46f73bcdec043"
)

func TestParseDigest(t *testing.T) {
	for _, c := range []struct{ in, out, fault string }{
		{helloSHA1, helloSHA1, ""},
		{"sha1:" + helloSHA1, helloSHA1, ""},
		{helloSHA1 + ";sha256:ab", helloSHA1 + ";sha256:ab", ""},
		{"sha256:ab;" + helloSHA1, "sha256:ab;" + helloSHA1, ""},
		{"md9:ab;sha1:cd", "md9:ab;cd", ""},
		{"", "", ErrNoDigest.Error()},
		{"md9:ab", "", ErrNoDigest.Error()},
		{"ab;sha1:cd", "", "more than one sha1"},
		{"ab;", "", "letters and digits"},
		{"sha256:", "", "letters and digits"},
		{"sha256:a:b", "", "letters and digits"},
		{"../../x", "", "letters and digits"},
	} {
		d, err := ParseDigest(c.in)
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("ParseDigest(%q): got error %v, want %q", c.in, err, c.fault)
		}
		if err == nil && d.String() != c.out {
			t.Errorf("ParseDigest(%q) prints %q, want %q", c.in, d, c.out)
		}
	}
}

func TestStrongestDecides(t *testing.T) {
	sha256sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("hello")))
	for _, c := range []struct {
		digest string
		want   string
	}{
		{helloSHA1, ""},
		{strings.ToUpper(helloSHA1), ""},
		{helloSHA512, ""},
		{sha256sum, ""},
		{"0000;" + helloSHA512, ""}, // a wrong sha1 does not matter beside a right sha512
		{"0000;" + sha256sum, ""},   //
		{helloSHA1 + ";sha512:00", "Checksum mismatch: expected sha"}, // and a right sha1 does not save a wrong sha512
		{"SHA1:" + helloSHA1, ""},
		{"Sha512:" + helloSHA512[len("sha512:"):], ""},
		{"md9:ab;" + helloSHA1, ""},
		{"0000", "Checksum mismatch: expected sha"},
	} {
		d, err := ParseDigest(c.digest)
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.Verify(io.NopCloser(iotest.OneByteReader(strings.NewReader("hello"))))
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %v", c.digest, err, c.want)
		}
	}
}

func TestSums(t *testing.T) {
	s := NewSums()
	if _, err := io.Copy(s, strings.NewReader("hello")); err != nil {
		t.Fatal(err)
	}
	if s.SHA1() != helloSHA1 || s.SHA512() != helloSHA512 || s.BothDigests() != helloSHA1+";"+helloSHA512 ||
		s.Size() != 5 {
		t.Errorf("got %s %s %s %d", s.SHA1(), s.SHA512(), s.BothDigests(), s.Size())
	}
}

func FuzzParseDigest(f *testing.F) {
	for _, s := range []string{"", helloSHA1, helloSHA512, "a;sha256:b", "x:y;;", "sha1:a;a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDigest(text)
		if err != nil {
			return
		}
		reparsed, err := ParseDigest(d.String())
		if err != nil || reparsed.String() != d.String() {
			t.Errorf("%q prints %q, which reads as %q, %v", text, d, reparsed, err)
		}
		if _, err := d.Verify(io.NopCloser(bytes.NewReader(nil))); err != nil && !errors.Is(err, ErrNoDigest) {
			t.Errorf("Verify: %v", err)
		}
	})
}
