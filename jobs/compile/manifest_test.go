package compile

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const written = `# made by hand
---
name: "it's"
version: 1.10 # a string, not a number
commit_hash: 0012345
license: |
  name: not this
  packages: nor these
jobs:
- {name: j, version: "1"}
packages:
- name: app
  version: '0e1'
  fingerprint: ~
  sha1: sha256:abc
  odd:
  - x: [1,
    2]
  dependencies:
  - lib
  - "base"

# between
-   name: lib
    version: a b
    dependencies: [base, "other"] # both
- dependencies: []
  version: 7
  name: base
tail: &anchor {a: *anchor}
`

func TestManifestIsReadAndRewritten(t *testing.T) {
	m, err := parseManifest(written)
	if err != nil {
		t.Fatal(err)
	}
	want := []manifestPackage{
		{Name: "app", Version: "0e1", Digest: "sha256:abc", Dependencies: []string{"lib", "base"}},
		{Name: "lib", Version: "a b", Dependencies: []string{"base", "other"}},
		{Name: "base", Version: "7"},
	}
	if m.Name != "it's" || m.Version != "1.10" || !reflect.DeepEqual(m.Packages, want) {
		t.Errorf("got %q %q %+v, want %+v", m.Name, m.Version, m.Packages, want)
	}
	text, err := m.compiled([]manifestPackage{{Name: `a"\<`, Version: "é", Fingerprint: "f", Digest: "d", Stemcell: "s/1", Dependencies: []string{"b"}}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(written, "packages:\n- name")
	if !strings.HasPrefix(text, before+"compiled_packages:\n- name: \"a") || !strings.HasSuffix(text, "\n"+rest[strings.Index(rest, "tail:"):]) {
		t.Errorf("the rest of the manifest has changed:\n%s", text)
	}
	var judged struct {
		Packages []map[string]any `yaml:"compiled_packages"`
		Sources  any              `yaml:"packages"`
	}
	if err := yaml.Unmarshal([]byte(strings.Replace(text, "*anchor", "1", 1)), &judged); err != nil {
		t.Fatal(err)
	}
	wantCompiled := []map[string]any{
		{"name": `a"\<`, "version": "é", "fingerprint": "f", "sha1": "d", "stemcell": "s/1", "dependencies": []any{"b"}},
		{"name": "b", "version": "", "fingerprint": "", "sha1": "", "stemcell": "", "dependencies": []any{}},
	}
	if judged.Sources != nil || !reflect.DeepEqual(judged.Packages, wantCompiled) {
		t.Errorf("got %v, want %v", judged.Packages, wantCompiled)
	}
}

func TestManifestWithoutPackagesGetsTheList(t *testing.T) {
	m, err := parseManifest("name: a\nversion: b")
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := m.compiled(nil); text != "name: a\nversion: b\ncompiled_packages: []\n" {
		t.Errorf("got %q", text)
	}
}

func TestManifestOutsideOfTheSubsetIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{name: a}":                                         "line 1: expected",
		"name: a\nname: b":                                  "line 2: name is there twice",
		" name: a":                                          "line 1: a manifest begins",
		"name: a\n---\nversion: b":                          "line 2: expected",
		"name: |\n  a":                                      "line 2: name must be on one line",
		"name: !x a":                                        "line 1: only plain",
		"name: \"a\\n\"":                                    "line 1: escapes",
		"name: 'a":                                          "line 1: a quoted word must end",
		"name: 'a' b":                                       "line 1: text behind",
		"name: a\tb":                                        "line 1: control",
		"packages: a":                                       "line 1: packages must be a list",
		"packages: []\n- name: a":                           "line 2: packages goes on",
		"packages:\n-\n  name: a":                           "line 2: an item must begin",
		"packages:\n- name: a\n   version: b":               "line 3: name must be on one line",
		"packages:\n  - name: a\n   version: b":             "line 3: indented differently",
		"packages:\n  - name: a\n  version: b":              "line 3: expected an item",
		"packages:\n- name: a\n  name: b":                   "line 3: name is there twice",
		"packages:\n- name: a\n  dependencies: [a":          "line 3: dependencies must end",
		"packages:\n- name: a\n  dependencies: [a,]":        "line 3: an item of dependencies",
		"packages:\n- name: a\n  dependencies: b":           "line 3: dependencies must be a list",
		"packages:\n- name: a\n  dependencies:\n  - {a: b}": "line 4: only plain",
		"version: 1":                                        "name or version is missing",
		"name: a/b\nversion: 1":                             "name or version is missing or not usable",
		"name: a\nversion: 1\npackages:\n- name: ..\n":      `package "..": name or version`,
	} {
		if _, err := parseManifest(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Whatever our reader takes, a full YAML parser reads as the same.
func FuzzManifest(f *testing.F) {
	f.Add(written)
	f.Add("name: a\nversion: b\npackages:\n  - name: c\n    version: \"d\"\n    dependencies:\n      - e # f\n")
	f.Add("name: a\nversion: b\npackages: ~\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		var judge struct {
			Name     string
			Version  string
			Packages []struct {
				Name, Version, Fingerprint, SHA1 string
				Dependencies                     []string
			}
		}
		// What is not read may be anything, so that the judge may refuse the whole.
		if err := yaml.Unmarshal([]byte(text), &judge); err != nil {
			return
		}
		if m.Name != judge.Name || m.Version != judge.Version || len(m.Packages) != len(judge.Packages) {
			t.Fatalf("got %+v, want %+v", m, judge)
		}
		for i, p := range judge.Packages {
			got := m.Packages[i]
			if got.Name != p.Name || got.Version != p.Version || got.Fingerprint != p.Fingerprint || got.Digest != p.SHA1 || strings.Join(got.Dependencies, "\x00") != strings.Join(p.Dependencies, "\x00") {
				t.Fatalf("package %d: got %+v, want %+v", i, got, p)
			}
		}
	})
}
