package bootstrap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/bootstrap/engine"
	"cambium/internal/vcap"
	"cambium/platform/host"
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
	for name, content := range map[string]string{"passwd": "root:x:0:0::/root:/bin/sh\nvcap:x:1000:1000::/home/vcap:/bin/sh\n", "group": "root:x:0:\nvcap:x:1000:\n"} {
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
			[]string{"make directory /var/vcap/data/sys, mode 0750  (after ephemeral-disk)", "mount tmpfs at /var/vcap/data/sys/run, size 16m, mode 1770  (after ephemeral-disk)",
				"link /var/vcap/sys to /var/vcap/data/sys  (after ephemeral-disk)", "bind /var/vcap/data/root_opt to /opt (nodev)  (after ephemeral-disk)", "make directory /var/vcap/store, mode 0700"},
			[]string{"make directory /var/vcap/data, mode 0750"}},
		{"disk of an earlier boot", []storage.Change{mount},
			[]string{"mount tmpfs at /var/vcap/data/sys/run, size 16m, mode 1770  (after ephemeral-disk)", "bind /var/vcap/data/root_opt to /opt (nodev)  (after ephemeral-disk)"},
			[]string{"make directory /var/vcap/data/sys, mode 0750  (after ephemeral-disk)"}},
		{"mounted disk", nil, []string{"make directory /var/vcap/data/sys, mode 0750"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			disks := &drives{planned: c.disk}
			m := &Machine{Dirs: dirs, Settings: fixed{}, Ephemeral: disks, Persistent: disks, Tree: &tree.Kernel{Root: bareRoot(t)},
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
			if jobs := planned(t, m, "job-directories"); !slices.Contains(jobs, "make directory /var/vcap/data/sys/run/web, mode 0770  (after directories)") {
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
		users := &people{keys: c.have}
		m := &Machine{Settings: withKeys("env"), Users: users, PublicKey: func(context.Context) (string, error) { return c.iaas, nil }}
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

// A disk that is not there yet is waited for, and what mount_disk would do is no change of the boot.
func TestWhatABootDoesNotDoIsNoChange(t *testing.T) {
	disks := &drives{planned: []storage.Change{{Op: decide.Await, Device: "/dev/sdb", What: "wait for it"}}, others: []storage.Change{{Device: "/dev/sdc", What: "mount_disk will create GPT"}}}
	steps, err := engine.Plan(t.Context(), Steps(&Machine{Dirs: vcap.New("/var/vcap"), Settings: fixed{}, Ephemeral: disks, Persistent: disks}))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if len(s.Changes) > 0 || len(s.Warnings) > 0 != (s.Step == "ephemeral-disk") || len(s.Notes) > 0 != (s.Step == "persistent-disk") {
			t.Errorf("%s: changes %v, warnings %q, notes %q", s.Step, s.Changes, s.Warnings, s.Notes)
		}
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
	if got := planned(t, m, "settings"); !slices.Equal(got, want) {
		t.Errorf("planned %q, want %q", got, want)
	}
	_, rest := bootMachine(t, m)
	rest()
	if got := m.Status.Snapshot().Steps[2].Changes; !slices.Equal(got, want) {
		t.Errorf("changed %q, want %q", got, want)
	}
}

// Once the kernel lets all links use IPv6, no link has to be let by itself.
func TestNetworkIsPlannedForIPv6(t *testing.T) {
	sysctl := func(path string) []engine.Change {
		return engine.Changes([]host.Change{{Op: host.OpSetSysctl, Path: path, Content: []byte("0")}})
	}
	for path, want := range map[string]bool{"/proc/sys/net/ipv6/conf/all/disable_ipv6": true, "/proc/sys/net/ipv6/conf/default/disable_ipv6": false} {
		if got := enablesIPv6(sysctl(path)); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	if enablesIPv6(nil) || busOverIPv6(settings.Effective{}) {
		t.Error("nothing enables IPv6, and no bus needs it")
	}
}
