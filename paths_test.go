package cambium_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/vcap"
)

// statePaths are the paths that package vcap names, by method. Arguments are NAME.
func statePaths() map[string]string {
	paths := map[string]string{}
	for _, of := range []any{vcap.New(""), vcap.Place(vcap.New("").Bosh()), vcap.RunDir} {
		value := reflect.ValueOf(of)
		for i := range value.NumMethod() {
			method := value.Method(i)
			arguments := slices.Repeat([]reflect.Value{reflect.ValueOf("NAME")}, method.Type().NumIn())
			if path, ok := method.Call(arguments)[0].Interface().(string); ok {
				paths[value.Type().Method(i).Name] = path
			}
		}
	}
	return paths
}

// ownPath begins the path of a state file: below the base directory, or ours below /run and /var/lib. The rest there is
// of other programs.
var ownPath = regexp.MustCompile(`^(/var/vcap|/(run|var/lib)/[^/]*(cambium|bosh))`)

// TestOnlyVcapNamesStateFiles: a file that package vcap does not name is not in the list of docs/architecture.md, and
// another agent id inherits it. A directory in which vcap names something is vcap's alone: what is joined to it
// elsewhere are names from outside, such as those of jobs. Below the others, names are the affair of the package that
// uses them.
func TestOnlyVcapNamesStateFiles(t *testing.T) {
	parents, names := map[string]bool{}, map[string]bool{}
	for method, path := range statePaths() {
		base := filepath.Base(path)
		names[base] = strings.ContainsAny(base, "._") // others, like "log", mean many things
		for _, other := range statePaths() {
			parents[method] = parents[method] || path != other && within(other, path)
		}
	}
	files := agentFiles(t)
	constants := map[string]string{}
	for _, f := range files {
		f.addConstants(constants)
	}
	joins := 0
	for _, f := range files {
		for _, d := range f.Decls {
			variables := assigned(d, parents)
			ast.Inspect(d, func(n ast.Node) bool {
				if text := literal(n); ownPath.MatchString(text) {
					t.Errorf("%s: %q is a path of package vcap", f.position(n), text)
				}
				below, text := false, ""
				for _, part := range joined(n) {
					joins++
					below = below || calls(part, parents) || variables[name(part)]
					ast.Inspect(part, func(n ast.Node) bool {
						found := literal(n)
						if constant, ok := n.(ast.Expr); ok && found == "" {
							found = constants[qualified(f.Name.Name, constant)]
						}
						if strings.Trim(found, "/") != "" {
							text, below = found, below || names[found]
						}
						return true
					})
				}
				if below && text != "" {
					t.Errorf("%s: joins %q to a path of package vcap; add a method there", f.position(n), text)
				}
				return true
			})
		}
	}
	if joins < 100 || !parents["Bosh"] || parents["Spec"] {
		t.Errorf("the test looked at %d parts of paths, below %v", joins, parents)
	}
}

type agentFile struct {
	*ast.File
	set *token.FileSet
}

func (f agentFile) position(n ast.Node) token.Position { return f.set.Position(n.Pos()) }

// agentFiles parses the source files that the agent is built from, except those of package vcap.
func agentFiles(t *testing.T) (files []agentFile) {
	t.Helper()
	for _, p := range linked(t) {
		if !p.ours() || p.ImportPath == "cambium/internal/vcap" {
			continue
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, agentFile{f, set})
		}
	}
	return files
}

// addConstants adds the file's constant strings, as package.name.
func (f agentFile) addConstants(all map[string]string) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if g, ok := n.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i := range v.Values {
					all[f.Name.Name+"."+v.Names[i].Name] = literal(v.Values[i])
				}
			}
		}
		return true
	})
}

func literal(n ast.Node) string {
	if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, _ := strconv.Unquote(lit.Value) // the parser has accepted it
		return text
	}
	return ""
}

func name(e ast.Expr) string {
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// qualified is an identifier as package.name.
func qualified(pkg string, e ast.Expr) string {
	if id := name(e); id != "" {
		return pkg + "." + id
	}
	return selected(e)
}

// joined are the parts that make a path: those of Join, or both sides of + where the right one begins with a slash.
func joined(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.CallExpr:
		if function := selected(n.Fun); function == "filepath.Join" || function == "path.Join" {
			return n.Args
		}
	case *ast.BinaryExpr:
		if n.Op == token.ADD && strings.HasPrefix(literal(n.Y), "/") {
			return []ast.Expr{n.X, n.Y}
		}
	}
	return nil
}

// calls reports whether an expression calls one of these methods.
func calls(n ast.Node, methods map[string]bool) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 0 {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				found = found || methods[s.Sel.Name]
			}
		}
		return true
	})
	return found
}

// assigned are the variables of a function that get the result of one of these methods.
func assigned(d ast.Decl, methods map[string]bool) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i := range n.Lhs {
				if len(n.Rhs) == len(n.Lhs) && calls(n.Rhs[i], methods) {
					found[name(n.Lhs[i])] = true
				}
			}
		case *ast.RangeStmt:
			if calls(n.X, methods) {
				found[name(n.Value)] = true
			}
		}
		return true
	})
	delete(found, "")
	return found
}

// TestStateFilesAreListed compares the table of docs/architecture.md with package vcap: each path has one row, and "set
// aside" for another agent id is what the settings store does.
func TestStateFilesAreListed(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## State files\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]string{} // what becomes of a path with a new agent id; empty: it stays
	for _, line := range regexp.MustCompile("(?m)^\\| `.*$").FindAllString(section, -1) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		if len(cells) != 7 || slices.Contains(cells[:4], "") {
			t.Errorf("a row has %d cells, want 7, of which the first 4 are not empty: %s", len(cells), line)
			continue
		}
		for _, path := range regexp.MustCompile("`[^`]+`").FindAllString(cells[0], -1) {
			path = strings.Replace(strings.Trim(path, "`"), "$B", vcap.DefaultBase, 1)
			if _, twice := listed[path]; twice {
				t.Errorf("%s has two rows", path)
			}
			listed[path] = cells[5]
		}
	}
	dirs := vcap.New("")
	var known []string
	for _, path := range dirs.OfAgentID() {
		known = append(known, filepath.Join(filepath.Dir(vcap.ForeignPath(path, "other")), "*"))
	}
	for _, path := range statePaths() {
		known = append(known, path)
	}
	for _, path := range known {
		if _, found := listed[path]; !found {
			t.Errorf("docs/architecture.md does not list %s", path)
		}
	}
	for path, becomes := range listed {
		if !slices.Contains(known, path) {
			t.Errorf("docs/architecture.md lists %s, which package vcap does not name", path)
		}
		moved := slices.ContainsFunc(dirs.OfAgentID(), func(of string) bool { return within(path, of) })
		if moved != strings.HasPrefix(becomes, "set aside") {
			t.Errorf("docs/architecture.md: %s is %q with a new agent id; that it is set aside is %v", path, becomes, moved)
		}
	}
}
