package compile

import (
	"fmt"
	"reflect"
	"slices"
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
		{Name: "base", Version: "7", Dependencies: []string{}},
	}
	if m.Name != "it's" || m.Version != "1.10" || !reflect.DeepEqual(m.Packages, want) {
		t.Errorf("got %q %q %+v, want %+v", m.Name, m.Version, m.Packages, want)
	}
	text, err := m.compiled([]manifestPackage{{Name: `a"\<`, Version: "é", Fingerprint: "f", Digest: "d", Stemcell: "s/1",
		Dependencies: []string{"b"}}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(written, "packages:\n- name")
	if !strings.HasPrefix(text, before+"compiled_packages:\n  - name: \"a") ||
		!strings.HasSuffix(text, "\n"+rest[strings.Index(rest, "tail:"):]) {
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

func TestCommentsAroundThePackagesStay(t *testing.T) {
	m, err := parseManifest("name: a # name\r\nversion: b\r\n# before\r\npackages:\r\n  # inside\r\n- name: c\r\n  version: |\r\n    d\r\n    # of the text\r\n\r\n# after\r\nlicense: e")
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := m.compiled(nil); text != "name: a # name\r\nversion: b\r\n# before\r\ncompiled_packages: []\n\r\n# after\r\nlicense: e\n" {
		t.Errorf("got %q", text)
	}
}

func TestManifestThatCannotBeUsedIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "the document is empty",
		"a":                               "line 1: expected a mapping",
		"\xff\xfen\x00":                   "not UTF-8",
		"{name: a}":                       "line 1: the keys of a manifest must begin in the first column",
		"{\nname: a\n}":                   "line 2: the keys of a manifest must begin in the first column",
		"? name\n: a":                     "line 1: the keys of a manifest must begin in the first column",
		" name: a":                        "line 1: the keys of a manifest must begin in the first column",
		"name: a\nname: b":                "line 2: mapping key \"name\" already defined at line 1",
		"name: a\n---\nversion: b":        "line 2: expected a single document",
		"name: 'a":                        "line 2: found unexpected end of stream",
		"name: \"a\\n\"\nversion: b":      "name or version is missing or invalid",
		"packages: a":                     "line 1: cannot unmarshal !!str `a` into []",
		"packages:\n- name: a\n  name: b": "line 3: mapping key \"name\" already defined at line 2",
		"packages:\n- name: [a]\n  dependencies: b":              "line 2: cannot unmarshal !!seq into string; line 3: cannot unmarshal !!str `b` into []string",
		"packages:\n- name: a\n  dependencies:\n  - {a: b}":      "line 4: cannot unmarshal !!map into string",
		"name: a\nversion: b\npackages:\n- &x {}\ntail: *x":      "without its packages: unknown anchor 'x' referenced",
		"x: &x {packages: [{name: c, version: d}]}\n<<: *x":      "packages: not a top-level key of the manifest",
		"name: a\nversion: b\ncompiled_packages:\n- {name: c}\n": "the release is already compiled",
		"version: 1":            "name or version is missing",
		"name: a/b\nversion: 1": "name or version is missing or invalid",
		"name: a\nversion: 1\npackages:\n- name: ..\n": `package "..": name or version`,
	} {
		if _, err := parseManifest(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Whatever the packages are replaced by, the rest of the document means what it meant.
func FuzzManifest(f *testing.F) {
	f.Add(written)
	f.Add("name: a\nversion: b\npackages:\n  - name: c\n    version: \"d\"\n    dependencies:\n      - e # f\n")
	f.Add("name: a\nversion: b\npackages: ~\n")
	f.Add("name: a\rversion: b\u2028packages: |\u0085 c\n#d\n...\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		rewritten, err := m.compiled([]manifestPackage{{Name: "n"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		if !strings.HasPrefix(rewritten, m.before) || !strings.HasSuffix(rewritten, m.after) ||
			!strings.HasPrefix(text, m.before) || !strings.HasSuffix(text, m.after) {
			t.Fatalf("%q became %q", text, rewritten)
		}
		if was, is := topLevel(t, text), topLevel(t, rewritten); !slices.Equal(was, is) {
			t.Fatalf("%q became %q:\n%q\n%q", text, rewritten, was, is)
		}
	})
}

// topLevel lists the keys with the values that they have, without the packages.
func topLevel(t *testing.T, text string) (all []string) {
	root, err := parseMapping(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	for i := 0; i < len(root.Content); i += 2 {
		if key := root.Content[i].Value; key != "packages" && key != "compiled_packages" {
			all = append(all, key+"="+meaning(root.Content[i+1]))
		}
	}
	return all
}

func meaning(n *yaml.Node) string {
	text := fmt.Sprintf("%d %s %q [", n.Kind, n.Tag, n.Value)
	for _, child := range n.Content {
		text += meaning(child)
	}
	return text + "]"
}
