package sbom

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBills(t *testing.T) {
	// A test has no list of modules.
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", program, "cambium/lab/guest/first").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	modules, err := Modules(program)
	if err != nil || len(modules) < 2 || modules[0].Name != "stdlib" {
		t.Fatalf("modules of a program: %v (%v), want stdlib first", modules, err)
	}
	p := Product{Name: "bosh-openstack", Version: "1.2.3",
		SHA256: strings.Repeat("0a", 32), Made: time.Unix(1_700_000_000, 0),
		Parts: append(modules, Debian("libc6 2.36-9+deb12u9 amd64\nnot a package line\n", "bookworm")...)}
	for name, format := range map[string]func(Product) ([]byte, error){"spdx": Product.SPDX,
		"cyclonedx": Product.CycloneDX} {
		one, err1 := format(p)
		two, err2 := format(p)
		if err1 != nil || err2 != nil || !bytes.Equal(one, two) || !json.Valid(one) {
			t.Errorf("%s: %v, %v: not twice the same JSON", name, err1, err2)
		}
		// Of what a binary was linked from, Go's own packages alone have no digest in it.
		digests := regexp.MustCompile(`": "[0-9a-f]{64}"`).FindAllString(string(one), -1)
		if len(digests) != len(modules) || !slices.Contains(digests, `": "`+p.SHA256+`"`) {
			t.Errorf("%s has the digests %q, want %d, and the product's", name, digests, len(modules))
		}
		if !strings.Contains(string(one), "pkg:deb/debian/libc6@2.36-9+deb12u9?arch=amd64") {
			t.Errorf("%s has no libc6:\n%s", name, one)
		}
	}
	cdx, _ := p.CycloneDX()
	if !regexp.MustCompile(`"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}"`).Match(cdx) {
		t.Errorf("serial number is not a UUID:\n%.300s", cdx)
	}
}
