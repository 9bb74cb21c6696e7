//go:build machine

package machine

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/racer"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

const (
	raceStore  = "/var/vcap/store/raced"
	raceTarget = "/var/vcap/store_migration_target/theirs"
	raceOutput = "/var/vcap/data/racer"
	// raceExchanges is the number of exchanges that the racer must have made in each directory.
	raceExchanges = 100
)

// contest makes directories of vcap with the names of files and directories of /etc.
const contest = `mkdir -p "$0" && cd "$0" && for d in d0 d1 d2; do mkdir -p $d/cron.d && for f in passwd shadow sudoers cron.d/job; do echo harmless >$d/$f; done; done
chown -R vcap:vcap . && chmod -R a+rwX .`

// etc describes all of /etc, also when anything of it was last changed.
const etc = `find /etc -printf '%p %m %U %G %s %T@ %C@ %i %l\n' -type f -exec md5sum {} + | sort | md5sum`

// TestMachineRacerGetsNothing: a process of vcap that has directories of the store and of the new disk open exchanges what
// is in them for links to /etc. Root touches neither disk until it has let go of them, and is never led to /etc.
func TestMachineRacerGetsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	program, err := labtest.Program("racer", "cambium/integration/machine/racer")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(program)
	if err == nil {
		err = i.WriteFile(machine.File{Path: "/usr/local/bin/racer", Data: data, Mode: 0o755})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, cid := range []string{"old", "new"} {
		a, err := i.AttachNew(t.Context(), cid, lab.GiB)
		if err != nil {
			t.Fatal(err)
		}
		node := run(t, i, "sh", "-c", `until [ -b "$0" ]; do sleep 0.05; done; readlink -f "$0"`, a.Path)
		do(t, i, "{}", "add_persistent_disk", cid, strings.TrimSpace(node))
		do(t, i, "{}", "mount_disk", cid)
	}
	for _, dir := range []string{raceStore, raceTarget} {
		run(t, i, "sh", "-ec", contest, dir)
	}
	before := run(t, i, "sh", "-ec", etc)
	run(t, i, "systemd-run", "--quiet", "--unit=racer", "--uid=vcap", "--property=StandardOutput=truncate:"+raceOutput,
		"--setenv="+racer.Environment("/etc", raceStore, raceTarget), "/usr/local/bin/racer")
	run(t, i, "sh", "-c", "until grep -qs ready "+raceOutput+"; do sleep 0.05; done")
	migrated := make(chan error, 1)
	go func() {
		_, err := i.Agent.Do(t.Context(), "migrate_disk", "old", "new")
		migrated <- err
	}()
	eventually.True(t, "the racer to be named", func() bool {
		journal, err := i.Journal(t.Context())
		return err == nil && strings.Contains(journal, "racer (pid")
	})
	run(t, i, "sh", "-ec", "echo x >/var/vcap/store/writable; [ -z \"$(find /var/vcap/store_migration_target -name raced)\" ]")
	run(t, i, "systemctl", "stop", "racer")
	for _, text := range strings.Fields(run(t, i, "cat", raceOutput))[1:] {
		if n, err := strconv.Atoi(text); err != nil || n < raceExchanges {
			t.Errorf("%q exchanges in a directory, want at least %d", text, raceExchanges)
		}
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	if after := run(t, i, "sh", "-ec", etc); after != before {
		t.Error("/etc has changed")
	}
	if got := run(t, i, "sh", "-ec", "find /var/vcap/store/raced /var/vcap/store/theirs -type f -exec grep -L harmless {} +"); got != "" {
		t.Errorf("files of /etc were copied:\n%s", got)
	}
	if got := run(t, i, "cat", "/var/vcap/store/writable"); got != "x\n" {
		t.Errorf("the new store has %q", got)
	}
}
