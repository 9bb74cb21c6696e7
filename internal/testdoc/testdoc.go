// Package testdoc reads the fenced code blocks of the pages, so that tests can run the commands in them. It also writes
// the parts and pictures of pages that tests generate. Only tests import it.
//
// The info string of a block has the language. For commands it also says how they are tested:
//
//	sh run      works in a checkout, on any machine with Go; make only prints what it would do (make -n)
//	sh machine  works as root on a machine with a running agent
//	sh example  needs what a test does not have: a file of the reader, a terminal, an hour
package testdoc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kinds of commands.
const (
	Run     = "run"
	Machine = "machine"
	Example = "example"
)

// Block is a fenced block.
type Block struct {
	Place    string // file and line
	Language string
	Kind     string // for commands; "" for other languages
	Text     string
}

// Blocks returns the fenced blocks of README.md, CONTRIBUTING.md and docs/*.md below a directory.
func Blocks(dir string) (blocks []Block, err error) {
	pages, err := filepath.Glob(filepath.Join(dir, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	for _, page := range append(pages, filepath.Join(dir, "README.md"), filepath.Join(dir, "CONTRIBUTING.md")) {
		data, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, parse(filepath.Base(page), string(data))...)
	}
	return blocks, nil
}

func parse(name, page string) (blocks []Block) {
	var open *Block
	n := 0
	for line := range strings.Lines(page) {
		n++
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			language, kind, _ := strings.Cut(info, " ")
			open = &Block{Place: fmt.Sprintf("%s:%d", name, n), Language: language, Kind: kind}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.Text += line
		}
	}
	return blocks
}

// CheckPart compares the part of a page between "<!-- name -->" and "<!-- end of name -->" with text. If update is set,
// it replaces the part.
func CheckPart(page, name, text string, update bool) error {
	data, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(string(data), begin)
	have, after, closed := strings.Cut(rest, end)
	switch {
	case !found || !closed:
		return fmt.Errorf("%s has no part between %q and %q", page, begin, end)
	case have == text:
		return nil
	case update:
		return os.WriteFile(page, []byte(before+begin+text+end+after), 0o644)
	}
	return fmt.Errorf("%s: the part %q is out of date; run the test with -update", page, name)
}
