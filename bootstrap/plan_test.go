package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/bootstrap/engine"
	"cambium/internal/vcap"
	"cambium/platform/host"
	"cambium/platform/platformtest"
	"cambium/platform/tree"
	"cambium/settings"
	"cambium/settings/store"
	"cambium/storage"
	"cambium/storage/decide"
)

// bareRoot is the root of a machine with accounts and nothing else.
func bareRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	err := os.Mkdir(filepath.Join(root, "etc"), 0o755)
	for name, content := range map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\nvcap:x:%d:%d::/home/vcap:/bin/sh\n",
			os.Geteuid(), os.Getegid()),
		"group":  fmt.Sprintf("root:x:0:\nvcap:x:%d:\n", os.Getegid()),
		"shadow": "root:*:19000:0:99999:7:::\nvcap:*:19000:0:99999:7:::\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "etc", name), []byte(content), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// planned are the changes of one step, with what they presume.
func planned(t *testing.T, m *Machine, step string) (lines []string) {
	t.Helper()
	steps, err := engine.Plan(t.Context(), Steps(m))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.Error != "" {
			t.Errorf("%s: %s", s.Step, s.Error)
		}
		for _, c := range s.Changes {
			if s.Step == step {
				lines = append(lines, c.String())
			}
		}
	}
	return lines
}

// A directory on a disk that is yet to be formatted is planned for an empty disk; one on a disk that
// is yet to be mounted for what an earlier boot left there.
func TestDirectoriesArePlannedForTheDiskToCome(t *testing.T) {
	dirs := vcap.New("/var/vcap")
	create := storage.Change{Op: decide.MakeFileSystem, Device: "/dev/sdb1"}
	mount := storage.Change{Op: decide.Mount, Device: "/dev/sdb1", Target: dirs.Data()}
	for _, c := range []struct {
		name           string
		disk           []storage.Change
		want, unwanted []string
	}{
		{"new disk", []storage.Change{create, mount},
			[]string{"make directory /var/vcap/data/sys, mode 0750  (after ephemeral-disk)",
				"mount tmpfs at /var/vcap/data/sys/run, size 16m, mode 1770  (after ephemeral-disk)",
				"link /var/vcap/sys to /var/vcap/data/sys  (after ephemeral-disk)",
				"bind /var/vcap/data/root_opt to /opt (nodev)  (after ephemeral-disk)",
				"make directory /var/vcap/store, mode 0700"},
			[]string{"make directory /var/vcap/data, mode 0750"}},
		{"disk of an earlier boot", []storage.Change{mount},
			[]string{"mount tmpfs at /var/vcap/data/sys/run, size 16m, mode 1770  (after ephemeral-disk)",
				"bind /var/vcap/data/root_opt to /opt (nodev)  (after ephemeral-disk)"},
			[]string{"make directory /var/vcap/data/sys, mode 0750  (after ephemeral-disk)"}},
		{"mounted disk", nil, []string{"make directory /var/vcap/data/sys, mode 0750"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			disks := &drives{planned: c.disk}
			m := &Machine{Dirs: dirs, Settings: fixed{}, Ephemeral: disks, Persistent: disks,
				Tree:     &tree.Kernel{Root: bareRoot(t), Log: platformtest.Quiet()},
				JobNames: func() ([]string, error) { return []string{"web"}, nil }}
			got := planned(t, m, "directories")
			for _, want := range c.want {
				if !slices.Contains(got, want) {
					t.Errorf("planned\n%s\nwant %q among it", strings.Join(got, "\n"), want)
				}
			}
			for _, unwanted := range c.unwanted {
				if slices.Contains(got, unwanted) {
					t.Errorf("planned\n%s\nwant no %q", strings.Join(got, "\n"), unwanted)
				}
			}
			// The tmpfs that the step before mounts is empty in any case.
			if jobs := planned(t, m, "job-directories"); !slices.Contains(jobs,
				"make directory /var/vcap/data/sys/run/web, mode 0770  (after directories)") {
				t.Errorf("planned for jobs\n%s", strings.Join(jobs, "\n"))
			}
		})
	}
}

// The step that authorizes all keys is planned for what the step before it leaves.
func TestKeysArePlannedOneStepAfterTheOther(t *testing.T) {
	for _, c := range []struct {
		name, iaas string
		have       []string
		env, all   int // planned changes
	}{
		{"first boot", "iaas", nil, 1, 1},
		{"first boot without a key of the IaaS", "", nil, 1, 0},
		{"key of the IaaS is there", "iaas", []string{"iaas"}, 1, 0},
		{"all there", "iaas", []string{"env", "iaas"}, 0, 0},
		{"another key of the IaaS", "new", []string{"env", "iaas"}, 0, 1},
	} {
		m := &Machine{Settings: withKeys("env"), Users: accounts(t, c.have...),
			PublicKey: func(context.Context) (string, error) { return c.iaas, nil }}
		if env, all := planned(t, m, "env-keys"), planned(t, m, "authorized-keys"); len(env) != c.env || len(all) != c.all {
			t.Errorf("%s: planned %q and %q, want %d and %d changes", c.name, env, all, c.env, c.all)
		}
		_, rest := bootMachine(t, m)
		rest()
		for _, s := range m.Status.Snapshot().Steps {
			if s.Name == "env-keys" && len(s.Changes) != c.env || s.Name == "authorized-keys" && len(s.Changes) != c.all {
				t.Errorf("%s: %s changed %q", c.name, s.Name, s.Changes)
			}
		}
	}
}

// A disk that is not there yet is waited for, and what mount_disk would do is not a change of the boot.
func TestWhatABootDoesNotDoIsNoChange(t *testing.T) {
	disks := &drives{planned: []storage.Change{{Op: decide.Await, Device: "/dev/sdb", What: "wait for it"}},
		others: []storage.Change{{Device: "/dev/sdc", What: "mount_disk will create GPT"}}}
	steps, err := engine.Plan(t.Context(), Steps(&Machine{Dirs: vcap.New("/var/vcap"), Settings: fixed{},
		Ephemeral: disks, Persistent: disks}))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if len(s.Changes) > 0 || len(s.Warnings) > 0 != (s.Step == "ephemeral-disk") ||
			len(s.Notes) > 0 != (s.Step == "persistent-disk") {
			t.Errorf("%s: changes %v, warnings %q, notes %q", s.Step, s.Changes, s.Warnings, s.Notes)
		}
	}
}

// A machine without its store serves, and no job is started: the plan says the same, and no more.
func TestJobsAreWithheldAsPlanned(t *testing.T) {
	for name, c := range map[string]struct {
		disks            drives
		warning, planned string
	}{
		"mounted": {drives{}, "", "supervisor"},
		"refused": {drives{store: errors.New("vol-1 is refused")}, "no job is started: vol-1 is refused", ""},
		"empty":   {drives{warning: "the store is empty"}, "the store is empty", "supervisor"},
	} {
		t.Run(name, func(t *testing.T) {
			daemon := &supervisor{}
			var reason string
			machine := func() *Machine {
				return &Machine{Settings: fixed{}, Persistent: &c.disks, Supervisor: daemon,
					WithheldChanged: func(why string) { reason = why }, Log: newEngine(t).Log}
			}
			steps, err := engine.Plan(t.Context(), Steps(machine()))
			if err != nil {
				t.Fatal(err)
			}
			if c.disks.mounted > 0 {
				t.Error("the plan has mounted the store")
			}
			var warnings, planned string
			for _, s := range steps {
				if s.Error != "" {
					t.Errorf("%s: planned to fail: %s", s.Step, s.Error)
				}
				if warnings += strings.Join(s.Warnings, ","); s.Step == "supervisor" {
					planned = s.Step
				}
			}
			if warnings != c.warning || planned != c.planned {
				t.Errorf("planned %q with warnings %q, want %q and %q", planned, warnings, c.planned, c.warning)
			}
			reason = ""
			v, rest := bootMachine(t, machine())
			rest()
			started := daemon.starts > 0
			warned := slices.Equal(v.Warnings, []string{"persistent-disk: " + c.warning})
			withheld := reason != "" && strings.HasSuffix(c.warning, reason)
			if v.Cause != nil || started != (c.planned != "") || withheld == started || warned != (c.disks.warning != "") {
				t.Errorf("boot: %s, withheld %q, %d starts, warnings %q", v.Line(), reason, daemon.starts, v.Warnings)
			}
		})
	}
}

// What hides a path is the file system that is mounted last above it.
func TestMountsHideWhatIsBelow(t *testing.T) {
	plans := func(changes []engine.Change) func(context.Context, *engine.Forecast) ([]engine.Change, error) {
		return func(context.Context, *engine.Forecast) ([]engine.Change, error) { return changes, nil }
	}
	never := func(context.Context, *engine.Span) error { panic("a plan runs nothing") }
	_, err := engine.Plan(t.Context(), []engine.Step{
		{Name: "disk", Run: never, Plan: plans(engine.Changes([]storage.Change{{Op: decide.Mount, Target: "/data"}}))},
		{Name: "directories", Run: never, Plan: plans(engine.Changes([]tree.Change{
			{Op: tree.OpMountTmpfs, Entry: tree.Entry{Path: "/data/run"}},
			{Op: tree.OpMake, Entry: tree.Entry{Path: "/other"}}}))},
		{Name: "last", Run: never, Plan: func(_ context.Context, f *engine.Forecast) ([]engine.Change, error) {
			for path, want := range map[string]string{"/data": "", "/data/sys": "disk", "/data/run": "disk",
				"/data/run/job": "directories", "/database": "", "/other/x": ""} {
				step, empty, hidden := hides(f, path)
				if step != want || hidden != (want != "") || empty != (want == "directories") {
					t.Errorf("%s: hidden %v by %q, empty %v, want %q", path, hidden, step, empty, want)
				}
			}
			return nil, nil
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// documents are settings as a store loads them.
type documents struct {
	fixed
	loaded store.Loaded
}

func (d documents) Load(context.Context) (store.Loaded, error) { return d.loaded, nil }

func TestSettingsThatAreWrittenAreAChange(t *testing.T) {
	m := &Machine{Settings: documents{loaded: store.Loaded{Wrote: "/var/vcap/bosh/settings.json", Foreign: "other"}}}
	want := []string{"set aside the state of agent other", "write /var/vcap/bosh/settings.json"}
	steps, err := engine.Plan(t.Context(), Steps(m))
	if err != nil {
		t.Fatal(err)
	}
	if got := planned(t, m, "settings"); !slices.Equal(got, want) {
		t.Errorf("planned %q, want %q", got, want)
	}
	v, rest := bootMachine(t, m)
	rest()
	if got := m.Status.Snapshot().Steps[2].Changes; !slices.Equal(got, want) {
		t.Errorf("changed %q, want %q", got, want)
	}
	if got := steps[0].Warnings; len(got) != 1 || !slices.Equal(v.Warnings, []string{"settings: " + got[0]}) {
		t.Errorf("planned to warn %q, warned %q", got, v.Warnings)
	}
}

// Once the kernel lets all links use IPv6, no link has to be let by itself.
func TestNetworkIsPlannedForIPv6(t *testing.T) {
	sysctl := func(path string) []engine.Change {
		return engine.Changes([]host.Change{{Op: host.OpSetSysctl, Path: path, Content: []byte("0")}})
	}
	for path, want := range map[string]bool{"/proc/sys/net/ipv6/conf/all/disable_ipv6": true,
		"/proc/sys/net/ipv6/conf/default/disable_ipv6": false} {
		if got := enablesIPv6(sysctl(path)); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	if enablesIPv6(nil) || busOverIPv6(settings.Effective{}) {
		t.Error("nothing enables IPv6, and no bus needs it")
	}
}
