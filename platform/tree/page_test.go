package tree

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cambium/internal/testdoc"
	"cambium/internal/vcap"
)

var update = flag.Bool("update", false, "write the table into docs/stemcells.md")

// TestTableIsOnThePage: docs/stemcells.md lists all paths of the table, with their kinds and modes.
func TestTableIsOnThePage(t *testing.T) {
	var page strings.Builder
	page.WriteString("\n| path | what is made | mode, owner |\n|---|---|---|\n")
	var paths []string
	rows := map[string][2][]string{}
	for _, e := range Table(vcap.New(""), Options{JobDirTmpfs: true, SettingsTmpfs: true}) {
		made := map[Kind]string{Symlink: "link to `" + e.Source + "`", Bind: "bind mount of `" + e.Source + "`",
			Tmpfs:   "tmpfs " + e.Size,
			Mounted: "mount point", File: "file"}[e.Kind]
		if e.Flags != 0 {
			made += ", " + strings.ReplaceAll(e.Flags.String(), ",", " ")
		}
		mode := ""
		if e.Mode != 0 {
			mode = octal(e.Mode)
		}
		if e.Owner != (Owner{}) {
			mode += " " + strings.TrimSuffix(e.Owner.User+":"+e.Owner.Group, ":")
		}
		row, seen := rows[e.Path]
		if !seen {
			paths = append(paths, e.Path)
		}
		for i, text := range []string{made, mode} {
			if text != "" && !slices.Contains(row[i], text) {
				row[i] = append(row[i], text)
			}
		}
		rows[e.Path] = row
	}
	slices.Sort(paths)
	for _, path := range paths {
		made := strings.Join(rows[path][0], "; ")
		if made == "" {
			made = "directory"
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s |\n", path, made, strings.Join(rows[path][1], "; "))
	}
	page.WriteString("\n")
	if err := testdoc.CheckPart("../../docs/stemcells.md", "directories", page.String(), *update); err != nil {
		t.Error(err)
	}
}
