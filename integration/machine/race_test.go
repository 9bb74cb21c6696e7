//go:build machine

package machine

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/racer"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

const (
	raceTarget = "/var/vcap/store_migration_target/raced"
	raceOutput = "/var/vcap/data/racer"
	// raceAttempts and raceMigrations bound the attempts at one migration, and the migrations.
	raceAttempts   = 5
	raceMigrations = 5
	raceExchanges  = 1000
)

// contest makes directories of vcap with the names of files and directories of /etc.
const contest = `mkdir -p "$0" && cd "$0" && for d in d0 d1 d2; do mkdir -p $d/cron.d && for f in passwd shadow sudoers cron.d/job; do echo harmless >$d/$f; done; done
chown -R vcap:vcap . && chmod -R a+rwX .`

// etc describes all of /etc, also when anything of it was last changed.
const etc = `find /etc -printf '%p %m %U %G %s %T@ %C@ %i %l\n' -type f -exec md5sum {} + | sort | md5sum`

// TestMachineRacerGetsNothing: while a store migrates, a process of vcap that has had a directory of the new disk
// open exchanges what is in it for links to /etc. Root is never led there.
func TestMachineRacerGetsNothing(t *testing.T) {
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
	before := run(t, i, "sh", "-ec", etc)
	exchanged := 0
	for n := 0; exchanged < raceExchanges; n++ {
		if n == raceMigrations {
			t.Fatalf("%d exchanges during %d migrations, want at least %d", exchanged, n, raceExchanges)
		}
		exchanged += racedMigration(t, i, n)
	}
	if after := run(t, i, "sh", "-ec", etc); after != before {
		t.Error("/etc has changed")
	}
}

// racedMigration migrates a new store to a new disk while the racer works there, and returns how often it has exchanged
// something. Where a link is in the place of a directory when the copy takes the directory over, the migration fails and is
// asked for again; if it happens to succeed early, there were few exchanges.
func racedMigration(t *testing.T, i *lab.Instance, n int) (exchanged int) {
	t.Helper()
	from, to := fmt.Sprintf("old-%d", n), fmt.Sprintf("new-%d", n)
	for _, cid := range []string{from, to} {
		a, err := i.AttachNew(t.Context(), cid, lab.GiB)
		if err != nil {
			t.Fatal(err)
		}
		node := run(t, i, "sh", "-c", `until [ -b "$0" ]; do sleep 0.05; done; readlink -f "$0"`, a.Path)
		do(t, i, "{}", "add_persistent_disk", cid, strings.TrimSpace(node))
		do(t, i, "{}", "mount_disk", cid)
	}
	run(t, i, "sh", "-ec", contest, "/var/vcap/store/raced")
	migrated := false
	for range raceAttempts {
		run(t, i, "sh", "-ec", contest, raceTarget)
		// A copy that failed has left the disk closed; the racer is to get in once more.
		run(t, i, "chmod", "755", path.Dir(raceTarget))
		run(t, i, "rm", "-f", raceOutput)
		run(t, i, "systemd-run", "--quiet", "--unit=racer", "--uid=vcap", "--property=StandardOutput=truncate:"+raceOutput,
			"--setenv="+racer.Environment("/etc", raceTarget), "/usr/local/bin/racer")
		run(t, i, "sh", "-c", "until grep -qs ready "+raceOutput+"; do sleep 0.05; done")
		_, err := i.Agent.Do(t.Context(), "migrate_disk", from, to)
		run(t, i, "systemctl", "stop", "racer")
		count := strings.Fields(run(t, i, "cat", raceOutput))
		n, _ := strconv.Atoi(count[len(count)-1])
		exchanged += n
		t.Logf("%d exchanges, migrate_disk: %v", n, err)
		if migrated = err == nil; migrated {
			break
		}
		run(t, i, "rm", "-rf", raceTarget)
	}
	if !migrated {
		do(t, i, "{}", "migrate_disk", from, to) // left alone, it succeeds
		if got := run(t, i, "cat", "/var/vcap/store/raced/d1/shadow"); got != "harmless\n" {
			t.Errorf("the new store has %q", got)
		}
	}
	for _, cid := range []string{from, to} {
		if _, err := i.Agent.Do(t.Context(), "unmount_disk", cid); err != nil {
			t.Fatal(err)
		}
		do(t, i, "{}", "remove_persistent_disk", cid)
	}
	return exchanged
}
