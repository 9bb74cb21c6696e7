package compile

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// manifest has the fields of a release.MF that are needed to compile it. The list of packages is replaced, and the rest
// of the text is copied unchanged, which an encoder could not do.
type manifest struct {
	Name             string            `yaml:"name"`
	Version          string            `yaml:"version"`
	Packages         []manifestPackage `yaml:"packages"`
	CompiledPackages []manifestPackage `yaml:"compiled_packages"`

	before, after string // the text before and after the packages
}

type manifestPackage struct {
	Name         string   `yaml:"name"`
	Version      string   `yaml:"version"`
	Fingerprint  string   `yaml:"fingerprint"`
	Digest       string   `yaml:"sha1"`
	Stemcell     string   `yaml:"stemcell"`
	Dependencies []string `yaml:"dependencies"`
}

func parseManifest(text string) (manifest, error) {
	var m manifest
	if !strings.HasSuffix(text, "\n") {
		text += "\n" // so that something can follow
	}
	root, err := parseMapping(text)
	if err != nil {
		return m, err
	}
	if err := root.Decode(&m); err != nil {
		return m, mistakes(err)
	}
	if err := m.split(text, root); err != nil {
		return m, err
	}
	return m, m.check()
}

// parseMapping parses a YAML document that must be a mapping.
func parseMapping(text string) (*yaml.Node, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("not UTF-8")
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err == io.EOF {
		return nil, errors.New("the document is empty")
	} else if err != nil {
		return nil, mistakes(err)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: expected a mapping", root.Line)
	}
	if err := decoder.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: expected a single document", second.Line)
	} else if err != io.EOF {
		return nil, mistakes(err)
	}
	return root, nil
}

// mistakes joins the errors of a document, which the library puts on separate lines.
func mistakes(err error) error {
	if typed, ok := errors.AsType[*yaml.TypeError](err); ok {
		return errors.New(strings.Join(typed.Errors, "; "))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
}

// lineBreak matches the line breaks of YAML 1.1, which determine the line numbers of its nodes.
var lineBreak = regexp.MustCompile("\r\n|[\r\n\u0085\u2028\u2029]")

// split cuts the text at the packages, which end at the next top-level key. Comments before that key are kept.
func (m *manifest) split(text string, root *yaml.Node) error {
	starts := []int{0}
	for _, at := range lineBreak.FindAllStringIndex(text, -1) {
		starts = append(starts, at[1])
	}
	m.before = text
	found := false
	for i := 0; i < len(root.Content); i += 2 {
		key := root.Content[i]
		if key.Column != 1 || root.Style&yaml.FlowStyle != 0 {
			return fmt.Errorf("line %d: the keys of a manifest must begin in the first column", key.Line)
		}
		if key.Value != "packages" {
			continue
		}
		found = true
		end := len(starts) - 1
		if i+2 < len(root.Content) {
			end = root.Content[i+2].Line - 1
		}
		for isComment(text[starts[end-1]:starts[end]]) {
			end--
		}
		m.before, m.after = text[:starts[key.Line-1]], text[starts[end]:]
	}
	if !found && len(m.Packages) > 0 {
		return errors.New("packages: not a top-level key of the manifest")
	}
	// The rest must parse without the packages: it may refer to a YAML anchor in them.
	text, err := m.compiled(nil)
	if err == nil {
		_, err = parseMapping(text)
	}
	if err != nil {
		return fmt.Errorf("without its packages: %w", err)
	}
	return nil
}

// isComment reports whether a line is a comment or empty.
func isComment(line string) bool { return line[0] == '#' || strings.TrimSpace(line) == "" }

func (m manifest) check() error {
	if len(m.CompiledPackages) > 0 {
		return errors.New("the release is already compiled")
	}
	for _, name := range []string{m.Name, m.Version} {
		if !usable(name) {
			return errors.New("name or version is missing or invalid")
		}
	}
	for _, p := range m.Packages {
		if !usable(p.Name) || p.Version == "" {
			return fmt.Errorf("package %q: name or version is missing or invalid", p.Name)
		}
	}
	return nil
}

// usable reports whether a name can be part of a file name.
func usable(name string) bool {
	return name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".") &&
		!strings.ContainsFunc(name, unicode.IsControl)
}

// compiled returns the manifest with the compiled packages in place of its packages.
func (m manifest) compiled(packages []manifestPackage) (string, error) {
	var b strings.Builder
	b.WriteString(m.before)
	var list yaml.Node
	if err := list.Encode(map[string]any{"compiled_packages": packages}); err != nil {
		return "", err
	}
	quoteValues(&list)
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(&list), encoder.Close()); err != nil {
		return "", err
	}
	b.WriteString(m.after)
	return b.String(), nil
}

// quoteValues quotes all string values. YAML parsers disagree about what a number is: some read 1_0 or 1,0 as one.
func quoteValues(n *yaml.Node) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		if child.Kind == yaml.ScalarNode {
			child.Style = yaml.DoubleQuotedStyle
		}
		quoteValues(child)
	}
}
