package compile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// A release.MF is YAML as the bosh CLI writes it: a block mapping whose `packages` is a list of
// flat mappings. Only four of its top-level keys are read, and one is replaced; everything else
// is copied byte for byte, which no encoder would do. What is read is a subset of YAML, and what
// lies outside of it is an error with its line, never a guess.

// manifest is what is needed of a release.MF.
type manifest struct {
	Name             string
	Version          string
	Packages         []manifestPackage
	CompiledPackages []manifestPackage

	before, after string // the text around the packages
}

type manifestPackage struct {
	Name         string
	Version      string
	Fingerprint  string
	Digest       string
	Stemcell     string
	Dependencies []string
}

func parseManifest(text string) (manifest, error) {
	var m manifest
	sections, err := splitSections(text)
	if err != nil {
		return m, err
	}
	m.before = text
	for _, s := range sections {
		switch s.key {
		case "name":
			m.Name, err = s.scalar()
		case "version":
			m.Version, err = s.scalar()
		case "packages":
			m.Packages, err = s.packages()
			m.before, m.after = text[:s.start], text[s.end:]
		case "compiled_packages":
			m.CompiledPackages, err = s.packages()
		}
		if err != nil {
			return m, err
		}
	}
	return m, m.check()
}

func (m manifest) check() error {
	if len(m.CompiledPackages) > 0 {
		return errors.New("the release is compiled already")
	}
	for _, name := range []string{m.Name, m.Version} {
		if !usable(name) {
			return errors.New("name or version is missing or not usable")
		}
	}
	for _, p := range m.Packages {
		if !usable(p.Name) || p.Version == "" {
			return fmt.Errorf("package %q: name or version is missing or not usable", p.Name)
		}
	}
	return nil
}

func usable(name string) bool {
	return name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".")
}

// compiled is the manifest's text with compiled packages in place of its packages.
func (m manifest) compiled(packages []manifestPackage) (string, error) {
	var b strings.Builder
	b.WriteString(m.before)
	if m.before != "" && !strings.HasSuffix(m.before, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString("compiled_packages:")
	if len(packages) == 0 {
		b.WriteString(" []")
	}
	b.WriteByte('\n')
	for _, p := range packages {
		indent := "- "
		for _, field := range [][2]string{{"name", p.Name}, {"version", p.Version}, {"fingerprint", p.Fingerprint}, {"sha1", p.Digest}, {"stemcell", p.Stemcell}} {
			value, err := quote(field[1])
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "%s%s: %s\n", indent, field[0], value)
			indent = "  "
		}
		b.WriteString("  dependencies:")
		if len(p.Dependencies) == 0 {
			b.WriteString(" []")
		}
		b.WriteByte('\n')
		for _, d := range p.Dependencies {
			value, err := quote(d)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "  - %s\n", value)
		}
	}
	b.WriteString(m.after)
	return b.String(), nil
}

// quote writes a scalar as a JSON string, which every YAML reader takes for a string.
func quote(s string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return "", err
	}
	return strings.TrimSpace(b.String()), nil
}

// section is one key of a mapping with its value: the rest of the key's line, and the lines
// below it that belong to it.
type section struct {
	key        string
	value      string
	number     int // of the key's line
	lines      []line
	start, end int // in the text
}

type line struct {
	number int
	indent int
	text   string // without indentation; never empty
}

func unclear(number int, why string) error { return fmt.Errorf("line %d: %s", number, why) }

// splitSections cuts a document at the keys of its top level. Whatever a value is, its lines
// are indented, or are items of a list.
func splitSections(text string) ([]section, error) {
	var sections []section
	offset, number := 0, 0
	for raw := range strings.Lines(text) {
		number++
		start := offset
		offset += len(raw)
		l := line{number: number, text: strings.TrimRight(raw, " \r\n")}
		trimmed := strings.TrimLeft(l.text, " ")
		l.indent, l.text = len(l.text)-len(trimmed), trimmed
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue // it belongs to what is around it, and means nothing there that is read
		}
		belongs := len(sections) > 0 && (l.indent > 0 || trimmed == "-" || strings.HasPrefix(trimmed, "- "))
		switch {
		case trimmed == "---" && l.indent == 0 && len(sections) == 0:
			continue
		case belongs:
			last := &sections[len(sections)-1]
			last.lines, last.end = append(last.lines, l), offset
			continue
		case l.indent > 0:
			return nil, unclear(number, "a manifest begins in the first column")
		}
		key, value, err := cutKey(l)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(sections, func(s section) bool { return s.key == key }) {
			return nil, unclear(number, key+" is there twice")
		}
		sections = append(sections, section{key: key, value: value, number: number, start: start, end: offset})
	}
	return sections, nil
}

// cutKey splits a line of a mapping. Keys are plain words: nothing else is a key of a release.
func cutKey(l line) (key, value string, err error) {
	key, value, found := strings.Cut(l.text, ":")
	word := key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" && !strings.HasPrefix(key, "-")
	if !found || !word || (value != "" && value[0] != ' ') {
		return "", "", unclear(l.number, "expected a line such as \"name: value\"")
	}
	value = strings.TrimLeft(value, " ")
	if strings.HasPrefix(value, "#") {
		value = ""
	}
	return key, value, nil
}

func (s section) scalar() (string, error) {
	if len(s.lines) > 0 {
		return "", unclear(s.lines[0].number, s.key+" must be on one line")
	}
	return scalar(s.value, s.number)
}

// packages reads a list of flat mappings.
func (s section) packages() ([]manifestPackage, error) {
	items, err := s.items()
	if err != nil {
		return nil, err
	}
	var packages []manifestPackage
	for _, item := range items {
		p, err := readPackage(item)
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// items cuts a list into the lines of its items; the dash counts as indentation.
func (s section) items() ([][]line, error) {
	value, err := scalarOrEmptyList(s.value, s.number)
	switch {
	case err != nil:
		return nil, err
	case value != "":
		return nil, unclear(s.number, s.key+" must be a list")
	}
	var items [][]line
	for _, l := range s.lines {
		dash := l.text == "-" || strings.HasPrefix(l.text, "- ")
		switch {
		case len(items) == 0 && s.value != "" && !strings.HasPrefix(s.value, "#"):
			return nil, unclear(l.number, s.key+" goes on behind its value")
		case dash && (len(items) == 0 || l.indent == s.lines[0].indent):
			rest := strings.TrimLeft(l.text[1:], " ")
			if rest == "" || strings.HasPrefix(rest, "#") {
				return nil, unclear(l.number, "an item must begin on the line of its dash")
			}
			items = append(items, []line{{number: l.number, indent: l.indent + len(l.text) - len(rest), text: rest}})
		case len(items) == 0 || l.indent <= s.lines[0].indent:
			return nil, unclear(l.number, "expected an item of "+s.key)
		default:
			items[len(items)-1] = append(items[len(items)-1], l)
		}
	}
	return items, nil
}

func readPackage(lines []line) (manifestPackage, error) {
	var p manifestPackage
	var fields []section
	for _, l := range lines {
		indent := lines[0].indent
		dash := l.text == "-" || strings.HasPrefix(l.text, "- ")
		if len(fields) > 0 && (l.indent > indent || l.indent == indent && dash) {
			last := &fields[len(fields)-1]
			last.lines = append(last.lines, l)
			continue
		}
		if l.indent != indent {
			return p, unclear(l.number, "indented differently from the lines above")
		}
		key, value, err := cutKey(l)
		if err != nil {
			return p, err
		}
		if slices.ContainsFunc(fields, func(s section) bool { return s.key == key }) {
			return p, unclear(l.number, key+" is there twice")
		}
		fields = append(fields, section{key: key, value: value, number: l.number})
	}
	for _, f := range fields {
		var err error
		switch f.key {
		case "name":
			p.Name, err = f.scalar()
		case "version":
			p.Version, err = f.scalar()
		case "fingerprint":
			p.Fingerprint, err = f.scalar()
		case "sha1":
			p.Digest, err = f.scalar()
		case "dependencies":
			p.Dependencies, err = f.strings()
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// strings reads a list of scalars, one a line or in brackets.
func (s section) strings() ([]string, error) {
	var list []string
	if inner, found := strings.CutPrefix(s.value, "["); found {
		inner, rest, closed := strings.Cut(inner, "]")
		if !closed || len(s.lines) > 0 || (rest != "" && !strings.HasPrefix(rest, " #")) {
			return nil, unclear(s.number, s.key+" must end on the line of its bracket")
		}
		if strings.TrimSpace(inner) == "" {
			return nil, nil
		}
		for part := range strings.SplitSeq(inner, ",") {
			value, err := scalar(strings.TrimSpace(part), s.number)
			if err != nil {
				return nil, err
			}
			if value == "" || strings.ContainsAny(value, `{}[]"'#:`) {
				return nil, unclear(s.number, "an item of "+s.key+" is not a plain name")
			}
			list = append(list, value)
		}
		return list, nil
	}
	items, err := s.items()
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if len(item) > 1 {
			return nil, unclear(item[1].number, "an item of "+s.key+" must be on one line")
		}
		value, err := scalar(item[0].text, item[0].number)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func scalarOrEmptyList(text string, number int) (string, error) {
	if rest, empty := strings.CutPrefix(text, "[]"); empty && (rest == "" || strings.HasPrefix(rest, " #")) {
		return "", nil
	}
	return scalar(text, number)
}

// scalar reads a plain or quoted scalar of one line as the string that it is or stands for;
// null is the empty string.
func scalar(text string, number int) (string, error) {
	switch {
	case strings.ContainsAny(text, "\t\u0085\u2028\u2029\ufeff") || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }):
		return "", unclear(number, "control characters are not read here")
	case strings.HasPrefix(text, `"`):
		return quotedScalar(text, number, '"')
	case strings.HasPrefix(text, "'"):
		return quotedScalar(text, number, '\'')
	}
	if plain, _, found := strings.Cut(text, " #"); found {
		text = strings.TrimRight(plain, " ")
	}
	switch text {
	case "", "~", "null", "Null", "NULL":
		return "", nil
	}
	if strings.ContainsRune("&*!|>%@`{}[],#?:-", rune(text[0])) || strings.Contains(text, ": ") || strings.HasSuffix(text, ":") {
		// A dash or colon may begin a plain scalar, but not one that a release needs.
		return "", unclear(number, "only plain and quoted words are read here")
	}
	return text, nil
}

func quotedScalar(text string, number int, mark byte) (string, error) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && mark == '"':
			if i++; i == len(text) || (text[i] != '"' && text[i] != '\\') {
				return "", unclear(number, "escapes other than of quote and backslash are not read here")
			}
			b.WriteByte(text[i])
		case c == mark && mark == '\'' && i+1 < len(text) && text[i+1] == mark:
			b.WriteByte(mark)
			i++
		case c == mark:
			if rest := strings.TrimLeft(text[i+1:], " "); rest != "" && (!strings.HasPrefix(rest, "#") || rest == text[i+1:]) {
				return "", unclear(number, "text behind a quoted word")
			}
			return b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	return "", unclear(number, "a quoted word must end on its line")
}
