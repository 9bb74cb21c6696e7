//go:build root

package writes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/managedfs"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/dummysupervisor"
	"cambium/platform/device"
	"cambium/platform/mount"
	"cambium/settings/store"
	"cambium/storage"
	"cambium/storage/decide"
)

// disk is a disk of the machine. The first one of an operation is that with the agent's own files.
type disk struct {
	name  string
	size  int64
	grown int64 // its size when the recording begins, if that is another one
}

func (d disk) final() int64 { return max(d.size, d.grown) }

// canary is in every secret that the agent is given.
const canary = "CANARY-4711"

// machine is an agent's state and disks, from power on to power off.
type machine struct {
	t       testing.TB
	op      *operation
	dir     string // paths are the same at each boot: links lead there
	devices map[string]*looptest.Device
	dirs    vcap.Dirs
	current *store.Current
	disks   storage.Disks
	jobs    *jobs.Instance
	log     bytes.Buffer
	mark    func(name string)
	made    []storage.Change // by the boot
	byHand  bool             // an operator had to help
	version string           // of the settings that their source answers with; empty: it is away
}

// on attaches the disks and mounts the first one, as the kernel does before the agent starts.
func on(t testing.TB, op *operation, dir string, attach func(name string) *looptest.Device) *machine {
	t.Helper()
	m := &machine{t: t, op: op, dir: dir, devices: map[string]*looptest.Device{}, mark: func(string) {},
		dirs: vcap.New(filepath.Join(dir, "vcap"))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", &m.log)
		}
	})
	for _, d := range op.disks {
		m.devices[d.name] = attach(d.name)
		link := m.hint(d.name)
		_ = os.Remove(link) // of the last boot
		m.ok(os.Symlink(m.devices[d.name].Path, link))
	}
	root := m.devices[op.disks[0].name].Path
	err := mount.MountDevice(t.Context(), root, m.dirs.Base(), "ext4", nil)
	if errors.Is(err, unix.EBADMSG) { // of a torn superblock; a machine would ask on its console
		m.byHand = true
		m.repair(root)
		err = mount.MountDevice(t.Context(), root, m.dirs.Base(), "ext4", nil)
	}
	m.ok(err)
	m.noSecretReadable()
	return m
}

func (m *machine) hint(name string) string { return filepath.Join(m.dir, "dev", name) }

func (m *machine) ok(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// document returns the settings document that the source serves.
func (m *machine) document(version string) string {
	var persistent []string
	for _, d := range m.op.disks[1:] {
		if d.name != "data" {
			persistent = append(persistent, fmt.Sprintf(`%q: {"path": %q}`, d.name, m.hint(d.name)))
		}
	}
	return fmt.Sprintf(`{"agent_id": "agent-1", "vm": {"name": "vm-1"}, "mbus": "nats://agent:%s@127.0.0.1:4222",
		"ntp": [%q], "disks": {"ephemeral": %q, "persistent": {%s}},
		"env": {"persistent_disk_fs": %q, "persistent_disk_partitioner": %q, "bosh": {"swap_size": 8}}}`,
		canary, version, m.hint("data"), strings.Join(persistent, ", "), m.op.fileSystem, m.op.partitioner)
}

// boot is the agent's, as far as it writes to disks. The source of the settings answers with a version, or not at all.
func (m *machine) boot(version string) error {
	m.version = version
	logger := logrus.New()
	logger.SetOutput(&m.log)
	log := logrus.NewEntry(logger)
	var err error
	m.current, err = store.Open(m.dirs, store.Options{Log: log, Fetch: func(context.Context) (store.Fetched, error) {
		if m.version == "" {
			return store.Fetched{}, errors.New("the source is away")
		}
		return store.Fetched{Raw: secret.NewJSON([]byte(m.document(m.version))), From: "test"}, nil
	}})
	if err != nil {
		return err
	}
	if _, err := m.current.Load(m.t.Context()); err != nil {
		return err
	}
	resolver, err := device.New(device.Options{}, log)
	if err != nil {
		return err
	}
	m.disks = storage.New(storage.Config{Dirs: m.dirs, Resolver: resolver, Known: m.current, Settings: m.current,
		Program: "/proc/self/exe", Log: log})
	m.disks.Persistent.Machine.InContainer = func() bool { return false }
	e := m.current.Effective()
	if m.devices["data"] != nil {
		made, err := m.disks.Ephemeral.Setup(m.t.Context(), e.Settings.Disks.Ephemeral, e.Settings.Env.Bosh.SwapSizeMiB,
			e.Settings.AgentID, true)
		if err != nil {
			return err
		}
		m.made = append(m.made, made...)
	}
	made, warning, err := m.disks.Persistent.MountStore(m.t.Context(), true)
	if err != nil || warning != "" {
		return fmt.Errorf("mount the last persistent disk: %q: %w", warning, err)
	}
	m.made = append(m.made, made...)
	m.jobs = &jobs.Instance{Dirs: m.dirs, Blobs: m.op.blobs, Supervisor: &dummysupervisor.Dummy{},
		Owner: bundle.Owner{GID: 1000}, Parallel: 2, Root: m.dir, Log: log}
	return m.jobs.Sweep()
}

// off cuts the power.
func (m *machine) off() {
	m.t.Helper()
	for _, d := range slices.Backward(m.op.disks) {
		m.devices[d.name].Release(m.t)
	}
}

// checkFileSystems unmounts everything and has all file systems checked.
func (m *machine) checkFileSystems() {
	m.t.Helper()
	checks := map[string]string{m.devices[m.op.disks[0].name].Path: "ext4"}
	for _, dir := range []string{m.dirs.StoreMigrationTarget(), m.dirs.Store(), m.dirs.Data(), m.dirs.Base()} {
		e, there, err := mount.At(dir)
		m.ok(err)
		if there {
			checks[e.Source] = e.Type
		}
		m.ok(mount.Unmount(m.t.Context(), dir))
	}
	for device, kind := range checks {
		m.ok(looptest.Guard(device))
		f, _ := managedfs.Find(kind)
		out, err := exec.Command(f.Check[0], append(slices.Clone(f.Check[1:]), device)...).CombinedOutput()
		if err != nil {
			m.t.Errorf("%s: %v\n%s", device, err, out)
		}
	}
}

// repair repairs a file system as an operator would who was asked for a decision.
func (m *machine) repair(part string) {
	m.t.Helper()
	m.ok(looptest.Guard(part))
	out, err := exec.Command("e2fsck", "-fy", part).CombinedOutput()
	exit, ended := errors.AsType[*exec.ExitError](err)
	if err != nil && (!ended || exit.ExitCode() > 1) { // 1: errors were corrected
		m.t.Fatalf("e2fsck: %v\n%s", err, out)
	}
}

// source returns the disk's name and the partition mounted on a directory, or "" if nothing is mounted there.
func (m *machine) source(dir string) string {
	m.t.Helper()
	e, there, err := mount.At(dir)
	m.ok(err)
	if !there {
		return ""
	}
	for name, d := range m.devices {
		if part, ours := strings.CutPrefix(e.Source, d.Path+"p"); ours {
			return name + " " + part
		}
	}
	return e.Source
}

// wantMounts compares what is mounted below the base directory.
func (m *machine) wantMounts(want map[string]string) {
	m.t.Helper()
	for dir, source := range want {
		if got := m.source(dir); got != source {
			m.t.Errorf("%s is %q, want %q", dir, got, source)
		}
	}
}

// noSecretReadable looks for files with secrets that others than root, and for jobs the group vcap, can read.
func (m *machine) noSecretReadable() {
	m.t.Helper()
	err := filepath.WalkDir(m.dirs.Base(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte(canary)) {
			return err
		}
		open := info.Mode().Perm() & 0o077
		if strings.HasPrefix(path, m.dirs.DataJobs()+"/") || strings.HasPrefix(path, m.dirs.MonitJobs()+"/") {
			open = info.Mode().Perm() & 0o007
		}
		if open != 0 {
			m.t.Errorf("%s holds a secret and has mode %v", path, info.Mode())
		}
		return nil
	})
	m.ok(err)
}

// nothingDamaged: what the agent had to mend by an older copy was torn.
func (m *machine) nothingDamaged() {
	m.t.Helper()
	if strings.Contains(m.log.String(), "damaged") {
		m.t.Error("a file of the agent was damaged")
	}
	left, err := filepath.Glob(filepath.Join(m.dirs.Bosh(), ".*cambium-tmp*"))
	if err != nil || len(left) > 0 {
		m.t.Errorf("left over: %v %v", left, err)
	}
}

// onlyMounted: the boot found all disks ready.
func (m *machine) onlyMounted() {
	m.t.Helper()
	for _, c := range m.made {
		if c.Op != decide.Mount && c.Op != decide.UseSwap {
			m.t.Errorf("the second boot did this: %s", c)
		}
	}
}

// writePrecious writes a file that must never be lost from then on.
func (m *machine) writePrecious(dir string) {
	m.t.Helper()
	f, err := os.Create(filepath.Join(dir, "kept"))
	m.ok(err)
	_, err = f.WriteString("precious")
	top, openErr := os.Open(dir)
	m.ok(errors.Join(err, f.Sync(), f.Close(), openErr, top.Sync(), top.Close()))
}

func (m *machine) wantPrecious(dir string) {
	m.t.Helper()
	if data, err := os.ReadFile(filepath.Join(dir, "kept")); err != nil || string(data) != "precious" {
		m.t.Errorf("the kept file of %s holds %q: %v", dir, data, err)
	}
}
