package jobs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"cambium/internal/blob"
	"cambium/internal/vcap"
	"cambium/jobs/bundle"
	"cambium/jobs/monit"

	"github.com/klauspost/compress/gzip"
	"github.com/sirupsen/logrus"
)

// archive packs files as a gzip tar. A name that ends with a slash is a directory.
func archive(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o777, Size: int64(len(files[name]))}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type memoryBlobs struct {
	mu      sync.Mutex
	blobs   map[string][]byte
	opened  []string
	removed []string
}

func (m *memoryBlobs) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened = append(m.opened, ref.ID)
	content, ok := m.blobs[ref.ID]
	if !ok {
		return nil, fmt.Errorf("no blob %s", ref.ID)
	}
	return ref.Digest.Verify(io.NopCloser(bytes.NewReader(content)))
}

func (m *memoryBlobs) Remove(id string) error {
	m.removed = append(m.removed, id)
	return nil
}

// add stores content under its own sha1 and returns that.
func (m *memoryBlobs) add(content []byte) string {
	id := fmt.Sprintf("%x", sha1.Sum(content))
	m.blobs[id] = content
	return id
}

type fakeSupervisor struct {
	calls     []string
	state     string
	reloadErr error
	onReload  func()
	onStop    func()
}

func (f *fakeSupervisor) Reload(context.Context) error {
	f.calls = append(f.calls, "reload")
	if f.onReload != nil {
		f.onReload()
	}
	return f.reloadErr
}
func (f *fakeSupervisor) StartAll(context.Context) error {
	f.calls = append(f.calls, "start")
	return nil
}
func (f *fakeSupervisor) StopAll(_ context.Context, wait bool) error {
	f.calls = append(f.calls, fmt.Sprintf("stop %v", wait))
	if f.onStop != nil {
		f.onStop()
	}
	return nil
}
func (f *fakeSupervisor) UnmonitorAll(context.Context) error {
	f.calls = append(f.calls, "unmonitor")
	return nil
}
func (f *fakeSupervisor) Observe(context.Context) (string, []Process, error) {
	return f.state, nil, nil
}

type machine struct {
	*Instance
	blobs   *memoryBlobs
	sup     *fakeSupervisor
	blocked []string
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	base := t.TempDir()
	dirs := vcap.New(filepath.Join(base, "vcap"))
	for _, d := range []string{dirs.Bosh(), dirs.Monit(), dirs.Data()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	m := &machine{blobs: &memoryBlobs{blobs: map[string][]byte{}}, sup: &fakeSupervisor{state: monit.StateRunning}}
	// A group of our own number where root runs the tests, so that the group is seen to be set.
	owner := bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}
	if owner.UID == 0 {
		owner.GID = 1000
	}
	m.Instance = &Instance{Dirs: dirs, Blobs: m.blobs, Supervisor: m.sup, Owner: owner, Parallel: 2, Root: base,
		Log: logrus.NewEntry(log)}
	return m
}

func TestANullDigestStaysNull(t *testing.T) {
	for _, archive := range []string{`{"sha1":null,"blobstore_id":""}`, `{"sha1":"","blobstore_id":""}`} {
		var spec Spec
		if err := json.Unmarshal([]byte(`{"rendered_templates_archive":`+archive+`}`), &spec); err != nil {
			t.Fatal(err)
		}
		if data, err := json.Marshal(spec.Archive); err != nil || string(data) != archive {
			t.Errorf("got %s, %v; want %s", data, err, archive)
		}
	}
}

// spec builds an apply spec with all jobs in one archive.
func (m *machine) spec(t testing.TB, jobs map[string]string, files map[string]string, packages map[string]string) Spec {
	t.Helper()
	id := m.blobs.add(archive(t, files))
	name := "group"
	s := Spec{ConfigurationHash: "h", Deployment: "dep", Name: name, ID: "uuid-1", AZ: "z1", Job: Job{Name: &name},
		Archive: &Archive{Digest: &id, BlobstoreID: id}, Packages: map[string]Package{}}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		s.Job.Templates = append(s.Job.Templates, Template{Name: job, Version: jobs[job]})
	}
	for pkg, content := range packages {
		id := m.blobs.add(archive(t, map[string]string{"./": "", "./bin/tool": content}))
		s.Packages[pkg] = Package{Name: pkg, Version: "1", Digest: id, BlobstoreID: id}
	}
	s.fill()
	return s
}

// snapshot is everything below the base directory that apply is responsible for.
func (m *machine) snapshot(t testing.TB) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(m.Dirs.Base(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(m.Dirs.Base(), path)
		line := fmt.Sprintf("%s %v", rel, info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", content)
		} else if info.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func hashOf(version, digest string) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(version+"-"+digest)))
}

// Contract J.1.
func TestApplyLaysOutTheMachine(t *testing.T) {
	for style, files := range map[string]map[string]string{
		"director": {"./": "", "./a/": "", "./a/bin/": "", "./a/bin/ctl": "ctl a", "./a/monit": "check a",
			"./a/config/x/y.yml": "y", "./b/": "", "./b/monit": "check b", "./b/extra.monit": "check b2"},
		"create-env": {"a/bin/ctl": "ctl a", "a/monit": "check a", "a/config/x/y.yml": "y", "b/monit": "check b",
			"b/extra.monit": "check b2"},
	} {
		t.Run(style, func(t *testing.T) {
			m := newMachine(t)
			spec := m.spec(t, map[string]string{"a": "v1", "b": "v2"}, files, map[string]string{"p": "P", "q": "Q"})
			if err := m.Prepare(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(m.Dirs.Jobs()); err == nil {
				t.Error("prepare made links")
			}
			if err := m.Apply(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			d := m.Dirs
			jobA := filepath.Join(d.DataJobs(), "a", hashOf("v1", spec.Archive.digest()))
			jobB := filepath.Join(d.DataJobs(), "b", hashOf("v2", spec.Archive.digest()))
			pkgP := filepath.Join(d.DataPackages(), "p", hashOf("1", spec.Packages["p"].Digest))
			for path, want := range map[string]fs.FileMode{
				d.Jobs(): 0o750, filepath.Join(d.DataJobs(), "a"): 0o750, jobA: 0o750, jobA + "/bin": 0o750,
				jobA + "/bin/ctl": 0o750,
				jobA + "/monit":   0o640, jobA + "/config": 0o750, jobA + "/config/x": 0o750, jobA + "/config/x/y.yml": 0o640,
				d.Packages(): 0o755, filepath.Join(d.DataPackages(), "p"): 0o755, pkgP: 0o755,
				filepath.Join(d.SysLog(), "a"): 0o770, filepath.Join(d.SysRun(), "a"): 0o770, filepath.Join(d.Data(), "b"): 0o770,
			} {
				info, err := os.Stat(path)
				if err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: got %v, %v; want %v", path, info, err, want)
				} else if gid := groupOf(info); gid != m.Owner.GID {
					t.Errorf("%s: got group %d, want %d", path, gid, m.Owner.GID)
				}
			}
			if info, err := os.Stat(pkgP + "/bin/tool"); err != nil || info.Mode().Perm() != 0o777 ||
				groupOf(info) != os.Getegid() {
				t.Errorf("package file: got %v, %v; want the archive's mode and root's group", info, err)
			}
			for link, want := range map[string]string{
				filepath.Join(d.Jobs(), "a"): jobA, filepath.Join(d.Jobs(), "b"): jobB, filepath.Join(d.Packages(), "p"): pkgP,
				jobA + "/packages/p": pkgP, jobB + "/packages/p": pkgP,
			} {
				if got, err := os.Readlink(link); err != nil || got != want {
					t.Errorf("%s: got %q, %v; want %q", link, got, err, want)
				}
			}
			for name, want := range map[string]string{"id": "uuid-1", "az": "z1", "name": "group", "deployment": "dep"} {
				if got, err := os.ReadFile(filepath.Join(d.Instance(), name)); err != nil || string(got) != want {
					t.Errorf("instance/%s: got %q, %v", name, got, err)
				}
			}
			if got, err := os.ReadFile(filepath.Join(m.Root, "etc/logrotate.d/vcap")); err != nil ||
				!strings.Contains(string(got), "size=50M") {
				t.Errorf("logrotate: got %q, %v", got, err)
			}
			if opened := len(m.blobs.opened); opened != 3 {
				t.Errorf("got %d downloads, want one for all jobs and one per package: %v", opened, m.blobs.opened)
			}
			if !slices.Contains(m.blobs.removed, spec.Archive.BlobstoreID) {
				t.Error("the archive of rendered templates was kept")
			}
			// Again: nothing changes, nothing is fetched.
			before := m.snapshot(t)
			if err := m.Apply(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if after := m.snapshot(t); after != before || len(m.blobs.opened) != 3 {
				t.Errorf("the second apply changed something:\n%s\n---\n%s", before, after)
			}
			if err := m.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			var names []string
			entries, _ := os.ReadDir(d.MonitJobs())
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if got, want := strings.Join(names, " "), "0000_b.monitrc 0000_b_extra.monitrc 0001_a.monitrc"; got != want {
				t.Errorf("monit files: got %s, want %s", got, want)
			}
		})
	}
}

// Contract J.3.
func TestUpdateRemovesWhatIsGone(t *testing.T) {
	m := newMachine(t)
	first := m.spec(t, map[string]string{"a": "1", "b": "1"}, map[string]string{"a/monit": "", "b/monit": ""},
		map[string]string{"p": "1", "q": "1"})
	second := m.spec(t, map[string]string{"a": "2", "c": "1"}, map[string]string{"a/monit": "2", "c/monit": ""},
		map[string]string{"p": "2", "r": "1"})
	for _, s := range []Spec{first, second} {
		if err := m.Apply(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	list := func(dir string) string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	for dir, want := range map[string]string{
		m.Dirs.Jobs(): "a c", m.Dirs.Packages(): "p r", m.Dirs.DataJobs(): "a c", m.Dirs.DataPackages(): "p r",
		filepath.Join(m.Dirs.Jobs(), "a", "packages"): "p r",
		filepath.Join(m.Dirs.DataJobs(), "a"):         hashOf("2", second.Archive.digest()),
	} {
		if got := list(dir); got != want {
			t.Errorf("%s: got %q, want %q", dir, got, want)
		}
	}
	got, err := m.Spec()
	if err != nil || strings.Join(got.JobNames(), " ") != "a c" {
		t.Errorf("got %v, %v", got.JobNames(), err)
	}
}

// TestApplyThatFailsChangesNothing breaks apply at several points and compares the machine.
// Contract J.2.
func TestApplyThatFailsChangesNothing(t *testing.T) {
	fault := errors.New("monit is gone")
	for name, sabotage := range map[string]func(*machine, *Spec){
		"package is missing": func(m *machine, s *Spec) { delete(m.blobs.blobs, s.Packages["p"].BlobstoreID) },
		"package is damaged": func(m *machine, s *Spec) { m.blobs.blobs[s.Packages["r"].BlobstoreID] = []byte("damaged") },
		"package is another one": func(m *machine, s *Spec) {
			m.blobs.blobs[s.Packages["r"].BlobstoreID] = archive(t, map[string]string{"./bin/tool": "not what the digest says"})
		},
		"package is cut": func(m *machine, s *Spec) {
			id := s.Packages["r"].BlobstoreID
			m.blobs.blobs[id] = m.blobs.blobs[id][:len(m.blobs.blobs[id])-9]
		},
		"templates with a link": func(m *machine, s *Spec) {
			data := linked(t, "a/config", "/etc/shadow")
			id := m.blobs.add(data)
			s.Archive = &Archive{Digest: &id, BlobstoreID: id}
		},
		"archive without the job": func(m *machine, s *Spec) {
			s.Job.Templates = append(s.Job.Templates, Template{Name: "absent", Version: "1"})
		},
		"monit does not reload": func(m *machine, s *Spec) { m.sup.reloadErr = fault },
		"spec cannot be written": func(m *machine, s *Spec) {
			m.sup.onReload = func() { m.block(t, m.Dirs.Spec()) }
		},
		"invalid":                     func(m *machine, s *Spec) { s.Job.Templates[0].Name = "../../etc" },
		"log size without a meaning":  func(m *machine, s *Spec) { s.Properties.Logging.MaxLogFileSize = "50 MB" },
		"log rotation cannot be read": func(m *machine, s *Spec) { m.block(t, filepath.Join(m.Root, "etc/logrotate.conf")) },
		"log rotation cannot be set": func(m *machine, s *Spec) {
			m.block(t, filepath.Join(m.Root, "etc/logrotate.d/vcap"))
		},
		"instance file cannot be read": func(m *machine, s *Spec) { m.block(t, m.Dirs.InstanceAZ()) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			first := m.spec(t, map[string]string{"a": "1", "b": "1"}, map[string]string{"a/monit": "1", "b/monit": "1"},
				map[string]string{"p": "1", "q": "1"})
			if err := m.Apply(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			if err := m.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := m.inForce(t)
			second := m.spec(t, map[string]string{"a": "2", "c": "1"}, map[string]string{"a/monit": "2", "c/monit": ""},
				map[string]string{"p": "2", "r": "1"})
			second.ID, second.AZ, second.Name, second.Deployment = "i2", "z2", "n2", "d2"
			second.Properties.Logging.MaxLogFileSize = "7M"
			good := second
			good.Job.Templates = slices.Clone(second.Job.Templates)
			kept := maps.Clone(m.blobs.blobs)
			sabotage(m, &second)
			if err := m.Apply(t.Context(), second); err == nil {
				t.Fatal("got no error")
			}
			// What was broken is mended, and the machine is as before.
			m.mend(t)
			if after := m.inForce(t); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
			// The same apply succeeds.
			m.sup.reloadErr, m.sup.onReload, m.blobs.blobs = nil, nil, kept
			if err := m.Apply(t.Context(), good); err != nil {
				t.Errorf("repeated: %v", err)
			}
			if s, err := m.Spec(); err != nil || strings.Join(s.JobNames(), " ") != "a c" {
				t.Errorf("repeated: got %v, %v", s.JobNames(), err)
			}
		})
	}
}

// linked packs one symbolic link.
func linked(t testing.TB, name, target string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}),
		w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestApplyAfterADeath ends an apply where it talks to the supervisor, with links switched and the
// spec not written, as a killed agent would. The next agent completes it, and nothing is left.
// Contract J.2.
func TestApplyAfterADeath(t *testing.T) {
	m := newMachine(t)
	first := m.spec(t, map[string]string{"a": "1", "b": "1"}, map[string]string{"a/monit": "1", "b/monit": "1"},
		map[string]string{"p": "1", "q": "1"})
	if err := errors.Join(m.Apply(t.Context(), first), m.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	second := m.spec(t, map[string]string{"a": "2", "c": "1"}, map[string]string{"a/monit": "2", "c/monit": ""},
		map[string]string{"p": "2", "r": "1"})
	m.sup.onReload = func() { panic("killed") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Apply was not interrupted")
			}
		}()
		_ = m.Apply(t.Context(), second)
	}()
	if s, err := m.Spec(); err != nil || strings.Join(s.JobNames(), " ") != "a b" {
		t.Errorf("spec.json: got %v, %v; want the old one", s.JobNames(), err)
	}
	if files, _ := os.ReadDir(m.Dirs.MonitJobs()); len(files) != 0 {
		t.Errorf("monit would start %v", files)
	}
	// Another agent begins, after a power cut in the middle of an atomic write.
	m.sup.onReload = nil
	halves := []string{filepath.Join(m.Dirs.Instance(), ".health.json.cambium-tmp-0a"),
		filepath.Join(m.Dirs.Monit(), ".stopped.cambium-tmp-0a")}
	for _, half := range halves {
		if err := os.WriteFile(half, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Sweep(); err != nil {
		t.Fatal(err)
	}
	for _, half := range halves {
		if _, err := os.Lstat(half); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", half, err)
		}
	}
	if err := errors.Join(m.Apply(t.Context(), second), m.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	after := m.visible(t)
	fresh := newMachine(t)
	fresh.blobs.blobs = m.blobs.blobs
	if err := errors.Join(fresh.Apply(t.Context(), second), fresh.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(fresh.visible(t), fresh.Dirs.Base(), m.Dirs.Base())
	if after != want {
		t.Errorf("got\n%s\nwant what a fresh machine has\n%s", after, want)
	}
}

// visible lists the files that jobs and monit see: links and monit's files.
func (m *machine) visible(t testing.TB) string {
	var lines []string
	for line := range strings.Lines(m.snapshot(t)) {
		if strings.Contains(line, " -> ") || strings.Contains(line, ".monitrc") || strings.Contains(line, "staging") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// inForce lists everything that an apply changes: the visible files, the spec, the instance files and the log
// rotation.
func (m *machine) inForce(t testing.TB) string {
	lines := m.visible(t)
	for line := range strings.Lines(m.snapshot(t)) {
		instance := strings.HasPrefix(line, "instance/") && !strings.Contains(line, "health")
		if instance || strings.HasPrefix(line, "bosh/spec.json ") {
			lines += line
		}
	}
	rotation, err := os.ReadFile(filepath.Join(m.Root, "etc/logrotate.d/vcap"))
	if err != nil {
		t.Error(err)
	}
	return lines + string(rotation)
}

// block puts a directory where a file was or may be, until mend: root, too, cannot read or replace it.
func (m *machine) block(t testing.TB, path string) {
	t.Helper()
	err := os.Rename(path, path+".kept")
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err := errors.Join(err, os.MkdirAll(filepath.Join(path, "x"), 0o755)); err != nil {
		t.Error(err)
	}
	m.blocked = append(m.blocked, path)
}

func (m *machine) mend(t testing.TB) {
	t.Helper()
	for _, path := range m.blocked {
		err := os.Rename(path+".kept", path+".back")
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
		if err == nil {
			err = os.Rename(path+".back", path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	m.blocked = nil
}

func TestApplyWithoutHashOnlyRecords(t *testing.T) {
	m := newMachine(t)
	spec := decode(t, `{"deployment":"d","id":"i","networks":{"default":{"ip":"10.0.0.5"}},"job":{"name":"x"}}`)
	if err := m.Apply(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	got, err := m.Spec()
	if err != nil || got.ID != "i" || got.NetworkString("default", "ip") != "10.0.0.5" || len(m.sup.calls) != 0 {
		t.Errorf("got %+v, %v, calls %v", got, err, m.sup.calls)
	}
	// create-env's first apply has a hash, an empty archive and no jobs.
	if err := m.Apply(t.Context(), decode(t, `{"configuration_hash":"unused","rendered_templates_archive":{"blobstore_id":"","sha1":""},"job":null}`)); err != nil {
		t.Error(err)
	}
}

func TestStartStopAndHealth(t *testing.T) {
	m := newMachine(t)
	health := func() string {
		data, _ := os.ReadFile(m.Dirs.Health())
		return string(data)
	}
	if err := m.Apply(t.Context(), m.spec(t, map[string]string{"a": "1"}, map[string]string{"a/monit": "1"},
		nil)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name   string
		do     func() error
		state  string
		health string
		calls  string
	}{
		{"start", func() error { return m.Start(t.Context()) }, monit.StateRunning, `{"state":"running"}`, "reload start"},
		{"stop", func() error { return m.Stop(t.Context(), true) }, monit.StateStopped, `{"state":"stopped"}`, "stop true"},
		{"start again", func() error { return m.Start(t.Context()) }, monit.StateRunning, `{"state":"running"}`, "reload start"},
		{"unmonitor", func() error { m.sup.state = monit.StateFailing; return m.Unmonitor(t.Context()) }, monit.StateFailing, `{"state":"failing"}`, "unmonitor"},
		{"stop without waiting", func() error { return m.Stop(t.Context(), false) }, monit.StateStopped, `{"state":"stopped"}`, "stop false"},
		{"monit dies", func() error { m.sup.state = monit.StateUnknown; return nil }, monit.StateUnknown, `{"state":"unknown"}`, ""},
	} {
		m.sup.calls = nil
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := m.JobState(t.Context()); got != step.state || health() != step.health {
			t.Errorf("%s: got %s and %s, want %s and %s", step.name, got, health(), step.state, step.health)
		}
		if got := strings.Join(m.sup.calls, " "); got != step.calls {
			t.Errorf("%s: got calls %q, want %q", step.name, got, step.calls)
		}
	}
	// A boot of a stopped instance starts nothing; one of another leaves everything as it is.
	if _, err := HoldBack(m.Dirs, false); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(m.Dirs.MonitJobs()); len(left) != 0 {
		t.Errorf("stopped: got %v", left)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := HoldBack(m.Dirs, false); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(m.Dirs.MonitJobs()); len(left) != 1 {
		t.Errorf("started: got %v", left)
	}
	// A job whose bundle is gone cannot be started, and that is said.
	if err := os.RemoveAll(filepath.Join(m.Dirs.DataJobs(), "a")); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("got %v", err)
	}
}

func TestPrepareReportsAllFailures(t *testing.T) {
	m := newMachine(t)
	spec := m.spec(t, nil, nil, map[string]string{"good": "1", "bad1": "2", "bad2": "3"})
	spec.Archive = nil
	for _, name := range []string{"bad1", "bad2"} {
		delete(m.blobs.blobs, spec.Packages[name].BlobstoreID)
	}
	m.Parallel = 3
	err := m.Prepare(t.Context(), spec)
	if err == nil || !strings.Contains(err.Error(), "bad1") || !strings.Contains(err.Error(), "bad2") {
		t.Errorf("got %v, want both", err)
	}
	b, _ := spec.Packages["good"].Bundle()
	if !m.packages().Installed(b) {
		t.Error("the good package was not installed")
	}
	m.Parallel = 0 // what an operator may write
	spec.Packages = map[string]Package{"good": spec.Packages["good"]}
	if err := m.Prepare(t.Context(), spec); err != nil {
		t.Error(err)
	}
}
