// Package sbom writes bills of materials of stemcells and releases in SPDX and CycloneDX. It lists Go modules, which it
// reads from a binary, and Debian packages. The same input gives the same bytes, and only code pinned by go.sum runs.
// Existing tools support only one kind of part, or add a random serial number or the time of the build.
package sbom

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Part is a component of the product.
type Part struct {
	Name, Version string
	PURL          string // name in the package URL scheme (purl)
	SHA256        string // hexadecimal; empty if unknown
}

// Product is the program or image that the bill describes.
type Product struct {
	Name, Version string
	SHA256        string // of the program or image, hexadecimal
	// Made is the time of the commit, and not of the build, so that builds are reproducible.
	Made  time.Time
	Parts []Part
}

// Modules returns the Go modules in a binary, with their digests from go.sum, and Go itself, for which a binary has no
// digest.
func Modules(binary string) ([]Part, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	parts := []Part{
		{
			Name:    "stdlib",
			Version: info.GoVersion,
			PURL:    "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"),
		},
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil {
			return nil, fmt.Errorf("digest %q of %s: %w", m.Sum, m.Path, err)
		}
		parts = append(parts, Part{Name: m.Path, Version: m.Version, SHA256: hex.EncodeToString(sum),
			PURL: "pkg:golang/" + m.Path + "@" + url.PathEscape(m.Version)})
	}
	return parts, nil
}

// Debian returns the packages in the output of dpkg-query, which has lines "name version architecture".
func Debian(list, suite string) []Part {
	var parts []Part
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		parts = append(parts, Part{Name: fields[0], Version: fields[1],
			PURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", fields[0], url.PathEscape(fields[1]),
				fields[2], suite)})
	}
	return parts
}

// digest returns a unique name of this bill, which both formats require.
func (p Product) digest() string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(p) // strings and a time: it cannot fail
	return hex.EncodeToString(h.Sum(nil))
}

func (p Product) sorted() []Part {
	return slices.SortedFunc(slices.Values(p.Parts), func(a, b Part) int { return strings.Compare(a.PURL, b.PURL) })
}

var notInIDs = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

type object = map[string]any

// spdx returns a package in SPDX's format.
func spdx(id, name, version, sum string) object {
	o := object{"SPDXID": id, "name": name, "versionInfo": version,
		"downloadLocation": "NOASSERTION", "filesAnalyzed": false}
	if sum != "" {
		o["checksums"] = []object{{"algorithm": "SHA256", "checksumValue": sum}}
	}
	return o
}

// SPDX returns the bill in SPDX 2.3.
func (p Product) SPDX() ([]byte, error) {
	const root = "SPDXRef-Product"
	packages := []object{spdx(root, p.Name, p.Version, p.SHA256)}
	relations := []object{
		{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root},
	}
	for n, part := range p.sorted() {
		id := fmt.Sprintf("SPDXRef-Package-%d-%s", n, notInIDs.ReplaceAllString(part.Name, "-"))
		o := spdx(id, part.Name, part.Version, part.SHA256)
		o["externalRefs"] = []object{{"referenceCategory": "PACKAGE-MANAGER",
			"referenceType": "purl", "referenceLocator": part.PURL}}
		packages = append(packages, o)
		relations = append(relations,
			object{"spdxElementId": root, "relationshipType": "CONTAINS", "relatedSpdxElement": id})
	}
	return encode(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": p.Name,
		"documentNamespace": "urn:sha256:" + p.digest(),
		"creationInfo": object{
			"created":  p.Made.UTC().Format(time.RFC3339),
			"creators": []string{"Tool: cambium-sbom"},
		},
		"packages": packages, "relationships": relations,
	})
}

// component returns a component in CycloneDX's format.
func component(kind, ref, name, version, sum string) object {
	o := object{"type": kind, "bom-ref": ref, "name": name, "version": version}
	if sum != "" {
		o["hashes"] = []object{{"alg": "SHA-256", "content": sum}}
	}
	return o
}

// CycloneDX returns the bill in CycloneDX 1.5.
func (p Product) CycloneDX() ([]byte, error) {
	d := p.digest()
	components := []object{}
	for _, part := range p.sorted() {
		o := component("library", part.PURL, part.Name, part.Version, part.SHA256)
		o["purl"] = part.PURL
		components = append(components, o)
	}
	return encode(object{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"serialNumber": fmt.Sprintf("urn:uuid:%s-%s-4%s-8%s-%s", d[0:8], d[8:12], d[13:16], d[17:20], d[20:32]),
		"metadata": object{"timestamp": p.Made.UTC().Format(time.RFC3339),
			"component": component("application", "product", p.Name, p.Version, p.SHA256)},
		"components": components,
	})
}

func encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}
