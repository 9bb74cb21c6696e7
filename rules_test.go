package cambium_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// mayImport says which of our packages a package may import: for each prefix, the prefixes
// that are allowed. The longest matching row counts; subpackages may always import their
// parents, and everything may import internal. See docs/architecture.md for the reasons.
var mayImport = map[string][]string{
	"internal":       {"internal"},
	"settings":       {},
	"settings/store": {"settings"},
	"infrastructure": {"infrastructure", "settings/agentjson"},
	"desired":        {"settings", "platform"},
	"platform":       {},
	// What is on a disk, and how it is divided, are values: packages without a machine.
	"platform/filesystem":  {"platform/filesystem/probe"},
	"platform/disk":        {"platform/device", "platform/filesystem", "platform/disk/layout"},
	"platform/disk/layout": {"platform/filesystem/probe"},
	"platform/mount":       {"platform/device", "platform/filesystem", "platform/disk"},
	// The daemon's package is below the model, those that wait and speak with neighbors above it.
	"platform/network":          {"platform/network/networkd"},
	"platform/network/networkd": {"platform/unit"},
	"platform/network/neighbor": {"platform/network/wait"},
	"platform/network/confirm":  {"platform/network/neighbor"},
	"platform/resolver":         {"platform/unit"},
	"platform/host":             {"platform/unit"},
	"storage":                   {"storage", "settings", "platform"},
	"storage/decide":            {"storage", "platform"},
	"bootstrap":                 {"bootstrap/engine", "desired", "settings", "platform", "storage", "jobs"},
	"bootstrap/engine":          {},
	"bootstrap/fetch":           {"infrastructure", "desired", "settings", "platform"},
	"blobstore":                 {},
	"jobs":                      {"jobs", "platform/unit", "supervisor/monitfile"},
	"supervisor":                {"supervisor"},
	"supervisor/monitfile":      {},
	"mbus":                      {"mbus"},
	"agent":                     {"desired", "settings", "mbus", "jobs", "platform", "agent"},
	"agent/task":                {},
	"scripts":                   {},
	"scripts/pages":             {"cmd/agent/cli", "cmd/agent/completion", "cmd/agent/manpage"},
	"stemcell-assets":           {},
	"lab":                       {"lab", "mbus", "settings", "stemcell-assets"},
	"integration":               {"integration", "lab", "mbus", "settings", "stemcell-assets"},
	"cmd/agent": {"agent", "blobstore", "bootstrap", "infrastructure", "jobs", "desired", "mbus",
		"platform", "settings", "storage", "supervisor", "cmd/agent"},
	"cmd/cpi": {"lab/cpi", "lab/iaas"},
	"cmd/lab": {"lab", "mbus", "settings", "stemcell-assets", "cmd/lab", "cmd/agent/cli",
		"cmd/agent/completion", "cmd/agent/timeline"},
}

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	Module     *struct {
		Path string
		Main bool
	}
}

func (p pkg) ours() bool { return p.Module != nil && p.Module.Main }

// list asks Go once for all packages of the project and all that these import.
var list = sync.OnceValues(func() (all []pkg, err error) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Imports,GoFiles,Module", "./...").Output()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
})

// packages returns the packages of the project.
func packages(t *testing.T) (own []pkg) {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.ours() {
			own = append(own, p)
		}
	}
	return own
}

// linked returns the packages that the agent is built from.
func linked(t *testing.T) (in []pkg) {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{"cambium/cmd/agent": true}
	for _, p := range slices.Backward(all) { // a package stands after those that it imports
		if wanted[p.ImportPath] {
			in = append(in, p)
			for _, imported := range p.Imports {
				wanted[imported] = true
			}
		}
	}
	return in
}

func within(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImportDirection(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, "cambium/")
		if from == "cambium" {
			continue
		}
		row := ""
		for prefix := range mayImport {
			if within(from, prefix) && len(prefix) > len(row) {
				row = prefix
			}
		}
		if row == "" {
			t.Errorf("%s has no row in mayImport", from)
			continue
		}
	imports:
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, "cambium/")
			if !ours || within(from, to) || within(to, "internal") && !within(from, "internal") {
				continue
			}
			for _, allowed := range mayImport[row] {
				if within(to, allowed) {
					continue imports
				}
			}
			t.Errorf("%s imports %s, which its row %q does not allow", from, to, row)
		}
	}
}

func TestOnlyCommandStartsPrograms(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, "cambium/")
		if within(from, "internal/command") || within(from, "lab") || within(from, "integration") || within(from, "cmd/lab") {
			continue
		}
		for _, imported := range p.Imports {
			if imported == "os/exec" {
				t.Errorf("%s imports os/exec; use internal/command", from)
			}
		}
	}
}

// TestDecisionsAreValues: what decides about disks, and everything of ours that it builds on, cannot touch a machine.
func TestDecisionsAreValues(t *testing.T) {
	all := map[string]pkg{}
	for _, p := range packages(t) {
		all[p.ImportPath] = p
	}
	seen := map[string]bool{}
	for todo := []string{"cambium/storage/decide", "cambium/storage/record"}; len(todo) > 0; todo = todo[1:] {
		from := todo[0]
		if seen[from] {
			continue
		}
		seen[from] = true
		for _, imported := range all[from].Imports {
			switch {
			case within(imported, "os"), within(imported, "syscall"), within(imported, "golang.org/x/sys"):
				t.Errorf("storage/decide builds on %s, which imports %s", from, imported)
			case within(imported, "cambium"):
				todo = append(todo, imported)
			}
		}
	}
	if !seen["cambium/storage/record"] || len(seen) < 3 {
		t.Errorf("the packages were not found: %v", seen)
	}
}

// TestBlkidIsNotRun: the agent reads by itself what is on a disk, so that it decides alike on every stemcell. blkid is
// for tests.
func TestBlkidIsNotRun(t *testing.T) {
	blkid := regexp.MustCompile(`\bblkid\b`)
	texts := 0
	for _, f := range agentFiles(t) {
		ast.Inspect(f.File, func(n ast.Node) bool {
			text := literal(n)
			if texts++; blkid.MatchString(text) {
				t.Errorf("%s: %q names blkid; use platform/filesystem/probe", f.position(n), text)
			}
			return true
		})
	}
	out, err := exec.Command("git", "ls-files", "stemcell-assets", "packaging").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		data, err := os.ReadFile(name)
		if texts++; err == nil && blkid.Match(data) { // others were deleted in the work tree
			t.Errorf("%s names blkid", name)
		}
	}
	if texts < 10_000 {
		t.Errorf("the test looked at %d places", texts)
	}
}

const maxFunction = 80

// TestFunctionsAreShort keeps functions readable.
func TestFunctionsAreShort(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if function, ok := d.(*ast.FuncDecl); ok {
					if n := files.Position(function.End()).Line - files.Position(function.Pos()).Line + 1; n > maxFunction {
						t.Errorf("%s: %s has %d lines, at most %d are allowed", p.ImportPath, function.Name.Name, n, maxFunction)
					}
				}
			}
		}
	}
}

var skips = regexp.MustCompile(`\b[tb]\.Skip(f|Now)?\(`)

// TestOnlySkiptestSkips: a test that is skipped where its means are promised shows nothing.
func TestOnlySkiptestSkips(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		data, err := os.ReadFile(name)
		if err != nil || within(name, "internal/skiptest") {
			continue // the former were deleted in the work tree
		}
		if skips.Match(data) {
			t.Errorf("%s skips a test by itself; use internal/skiptest, which fails it where CI is set", name)
		}
	}
}

// TestContextsComeFromTheTop: a wait that the caller cannot end is a wait without an end. The lab's machines outlive
// the calls that start them.
func TestContextsComeFromTheTop(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, "cambium/")
		if within(from, "lab") || within(from, "integration") || within(from, "cmd/lab") || strings.HasSuffix(from, "test") {
			continue
		}
		for _, name := range p.GoFiles {
			if within(from, "cmd") && name == "main.go" {
				continue
			}
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range []string{"context.Background()", "context.TO" + "DO()"} {
				if strings.Contains(string(data), call) {
					t.Errorf("%s/%s calls %s; take a context from the caller, or context.WithoutCancel", from, name, call)
				}
			}
		}
	}
}

// TestLabIsNotInTheAgent: nor is a helper of tests, which all import package testing.
func TestLabIsNotInTheAgent(t *testing.T) {
	for _, p := range linked(t) {
		for _, forbidden := range []string{"cambium/lab", "cambium/integration", "github.com/nats-io/nats-server",
			"testing"} {
			if strings.HasPrefix(p.ImportPath, forbidden) {
				t.Errorf("cmd/agent links %s", p.ImportPath)
			}
		}
	}
}

// TestOnlyUsualVariablesAreRead: what a test sets, such as a shorter time, is an option of a constructor.
func TestOnlyUsualVariablesAreRead(t *testing.T) {
	usual := []string{"COLUMNS", "GOGC", "NOTIFY_SOCKET", "NO_COLOR", "TERM", "TZ"}
	read := regexp.MustCompile(`\b(?:Getenv|LookupEnv)\(([^)]*)\)`)
	for _, p := range linked(t) {
		if !p.ours() {
			continue
		}
		for _, name := range p.GoFiles {
			source, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range read.FindAllStringSubmatch(string(source), -1) {
				if !slices.Contains(usual, strings.Trim(m[1], `"`)) {
					t.Errorf("%s/%s reads the environment variable %s; these are usual: %v", p.ImportPath, name, m[1], usual)
				}
			}
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		found := false
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			found = found || f.Doc != nil && len(strings.Fields(f.Doc.Text())) > 5
		}
		if !found {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

func TestTreeSpeaksOfItselfAlone(t *testing.T) {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	forbidden := []string{"/wo" + "rk/", "shared/refe" + "rence"}
	for _, name := range strings.Fields(string(out)) {
		if name == "go.sum" || name == "LICENSE" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			continue // deleted in the work tree
		}
		for _, word := range forbidden {
			if strings.Contains(string(data), word) {
				t.Errorf("%s contains %q", name, word)
			}
		}
	}
}

func TestLinkedModulesAreJustified(t *testing.T) {
	page, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]bool{}
	for _, p := range linked(t) {
		if p.Module == nil || p.ours() || modules[p.Module.Path] {
			continue
		}
		modules[p.Module.Path] = true
		if !strings.Contains(string(page), "| "+p.Module.Path+" |") {
			t.Errorf("docs/dependencies.md does not justify %s", p.Module.Path)
		}
	}
	for _, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) == 5 && strings.Contains(cells[1], "/") && !modules[strings.TrimSpace(cells[1])] {
			t.Errorf("docs/dependencies.md lists %s, which is not linked", strings.TrimSpace(cells[1]))
		}
	}
}

// listens are the ways to open a port.
var listens = regexp.MustCompile(`\b(net\.(Listen|ListenTCP|ListenConfig)|tls\.Listen|http\.ListenAndServe(TLS)?)\b`)

// TestPortsAreOpenedInOnePlace: Go's listeners accept multipath TCP, and the owner of such a peer cannot be told.
func TestPortsAreOpenedInOnePlace(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "cambium/internal/test") {
			continue
		}
		for _, name := range p.GoFiles {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(data)) {
				if !listens.MatchString(line) || strings.Contains(line, `"unix`) || strings.Contains(line, "//") {
					continue
				}
				if seen++; p.ImportPath != "cambium/internal/tcp" {
					t.Errorf("%s/%s: %s; use internal/tcp", p.ImportPath, name, strings.TrimSpace(line))
				}
			}
		}
	}
	if seen == 0 {
		t.Error("not even internal/tcp opens a port")
	}
}

// byHandle names the packages that work as root below directories which jobs can write to, and the files of them
// that do not. There, a path is resolved anew by each call, and a job can put a link into it between two of them: names
// are opened below an os.Root or a directory's file descriptor instead. A single call on a directory that root alone
// can replace has a comment beside it that says so.
//
// Packages that are not listed work where root alone can make names: /var/vcap/{bosh,monit,instance,jobs}, data/tmp,
// data/blobs, /etc. platform/tree makes the directories of jobs, by single calls that fail where something is there.
var byHandle = map[string][]string{
	"jobs/script": nil,
	"jobs/logs":   {"bundle.go", "rotation.go"},  // in data/tmp, /etc/logrotate.d
	"jobs/bundle": {"collection.go", "links.go"}, // in directories that root alone can write to
	"jobs/monit": { // monit's own files
		"client.go", "start.go", "checks.go", "dropin.go",
	},
	"agent/action":             {"dns.go", "ssh.go"},                   // the records of sync_dns, the host's keys
	"platform/user":            {"database.go", "lock.go", "table.go"}, // the account files in /etc
	"platform/copytree":        nil,
	"platform/copytree/worker": nil,
	"storage/migration":        nil,
	"internal/rootdir":         nil,
}

// byPath are the functions that open or change what a path names. os.OpenRoot and unix.Open, by which a directory that
// root alone can replace is opened first, are not among them.
var byPath = map[string]bool{
	"os.Open": true, "os.OpenFile": true, "os.Create": true, "os.CreateTemp": true, "os.ReadFile": true,
	"os.WriteFile": true, "os.ReadDir": true,
	"os.Chown": true, "os.Lchown": true, "os.Chmod": true, "os.Chtimes": true, "os.Truncate": true,
	"os.Mkdir": true, "os.MkdirAll": true, "os.MkdirTemp": true, "os.Symlink": true, "os.Link": true,
	"os.Remove": true, "os.RemoveAll": true, "os.Rename": true, "os.CopyFS": true,
	"filepath.Walk": true, "filepath.WalkDir": true, "filepath.Glob": true,
	"atomicfile.Write": true, "atomicfile.WriteFrom": true, "atomicfile.WriteIfChanged": true, "atomicfile.Remove": true,
	"unix.Mkdir": true, "unix.Rmdir": true, "unix.Unlink": true, "unix.Rename": true, "unix.Link": true,
	"unix.Symlink": true,
	"unix.Chown":   true, "unix.Lchown": true, "unix.Chmod": true, "unix.Truncate": true, "unix.Mknod": true,
}

func TestJobsDirectoriesAreWalkedByHandle(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		exempt, listed := byHandle[strings.TrimPrefix(p.ImportPath, "cambium/")]
		if !listed {
			continue
		}
		seen++
		for _, name := range p.GoFiles {
			if slices.Contains(exempt, name) {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			rootsOwn := map[int]bool{} // lines whose comment says so
			for _, group := range f.Comments {
				for _, c := range group.List {
					if strings.Contains(c.Text, "root alone") {
						rootsOwn[set.Position(c.Pos()).Line] = true
					}
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || rootsOwn[set.Position(call.Pos()).Line] {
					return true
				}
				if function := selected(call.Fun); byPath[function] &&
					(len(call.Args) == 0 || selected(call.Args[0]) != "os.DevNull") {
					t.Errorf("%s: %s takes a path below a directory that jobs can write to; use an os.Root", set.Position(call.Pos()),
						function)
				}
				return true
			})
		}
	}
	if seen != len(byHandle) {
		t.Errorf("%d of %d packages of byHandle exist", seen, len(byHandle))
	}
}

// selected is the text of an expression like os.Open, or empty.
func selected(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// TestSecurityPageNamesTests: each line of the threat model is shown by tests that exist.
func TestSecurityPageNamesTests(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 20 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, n := range named {
		files, err := filepath.Glob(filepath.Join(n[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(name string) bool {
			data, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(data), "\nfunc "+n[2]+"(t *testing.T) {")
		}) {
			t.Errorf("docs/security.md: there is no test %s.%s", n[1], n[2])
		}
	}
}
