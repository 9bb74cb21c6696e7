package testdoc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	got := parse("x.md", "text\n```sh run\na\nb\n```\n```json\n{}\n```\n```\n?\n```\n")
	want := []Block{{"x.md:2", "sh", "run", "a\nb\n"}, {"x.md:6", "json", "", "{}\n"}, {"x.md:9", "", "", "?\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEveryBlockIsMarked: a block says what it is, and commands say where they work.
func TestEveryBlockIsMarked(t *testing.T) {
	blocks, err := Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, b := range blocks {
		switch {
		case b.Language == "sh" && slices.Contains([]string{Run, Machine, Example}, b.Kind):
			kinds[b.Kind]++
		case b.Kind == "" && slices.Contains([]string{"text", "json", "xml", "yaml", "go"}, b.Language):
		default:
			t.Errorf("%s: mark the block as sh run, sh machine, sh example, text, json, xml, yaml or go", b.Place)
		}
	}
	if kinds[Run] == 0 || kinds[Machine] == 0 {
		t.Errorf("blocks of commands: %v", kinds)
	}
}

func TestGenerated(t *testing.T) {
	page := filepath.Join(t.TempDir(), "x.md")
	const before, after = "a\n<!-- part -->\nold\n<!-- end of part -->\nb\n",
		"a\n<!-- part -->\nnew\n<!-- end of part -->\nb\n"
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if CheckPart(page, "part", "new\n", false) == nil || CheckPart(page, "other", "new\n", true) == nil {
		t.Error("another text, or a missing part, is not an error")
	}
	if err := CheckPart(page, "part", "new\n", true); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(page); string(got) != after || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := CheckPart(page, "part", "new\n", false); err != nil {
		t.Error(err)
	}
}
