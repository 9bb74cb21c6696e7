//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/disk"
	"cambium/lab/fusetest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// places are the file systems that the agent writes to, by the names of their images.
var places = map[string]string{"root": "/var/vcap", "data": "/var/vcap/data", "store": "/var/vcap/store"}

// onItsDisk gives /var/vcap, which is the root disk's, a disk of its own, since a fault of the root disk is the host's.
// The first start of the agent waits until the test has removed /etc/vcap-hold: a fault begins before it.
const onItsDisk = `#!/bin/sh
set -e
mountpoint -q /var/vcap && exit
read disk </etc/vcap-disk
e2fsck -p $disk >/dev/null || [ $? -lt 4 ]
if [ ! -e /etc/vcap-copied ]; then
	mkdir -p /run/vcap-disk
	mount $disk /run/vcap-disk
	cp -a /var/vcap/. /run/vcap-disk
	umount /run/vcap-disk
	touch /etc/vcap-copied
fi
mount $disk /var/vcap
while [ -e /etc/vcap-hold ]; do sleep 0.1; done
`

// fault breaks a part of a machine for a while. place is empty where the fault concerns no file system.
type fault struct {
	name   string
	places []string
	begin  func(f *failingMachine, place string)
	end    func(f *failingMachine, place string)
	// early: it can begin before the agent has mounted the file system.
	early bool
}

var machineFaults = []fault{
	{name: "ENOSPC", places: []string{"root", "data", "store"},
		begin: func(f *failingMachine, place string) { // the last blocks are too few for one more piece of a large file
			f.sh("cd "+f.path(place)+`
cat /dev/zero >fill 2>/dev/null; sync -f .
n=0; while head -c 4096 /dev/zero >fill.$n 2>/dev/null; do n=$((n+1)); done; sync -f .
! head -c 4096 /dev/zero >fill.last 2>/dev/null`, false)
		},
		end: func(f *failingMachine, place string) { f.sh("rm -f "+f.path(place)+"/fill*", true) }},
	// A file system with files that are open for writing becomes read-only as it does after an error of its own.
	{name: "EROFS", places: []string{"root", "data", "store"},
		begin: func(f *failingMachine, place string) {
			f.sh("mount -o remount,ro "+f.path(place)+" 2>/dev/null || mount -o remount,abort "+f.path(place), false)
		},
		end: func(f *failingMachine, place string) { f.sh("mount -o remount,rw "+f.path(place)+" 2>/dev/null", true) }},
	{name: "EIO", places: []string{"root", "data", "store"}, early: true,
		begin: func(f *failingMachine, place string) { f.images.Set(f.image(place), fusetest.EIO) },
		end:   func(f *failingMachine, place string) { f.images.Set(f.image(place), fusetest.OK) }},
	{name: "latency of 100 ms", places: []string{"root", "data", "store"}, early: true,
		begin: func(f *failingMachine, place string) { f.images.Set(f.image(place), fusetest.Slow) },
		end:   func(f *failingMachine, place string) { f.images.Set(f.image(place), fusetest.OK) }},
	{name: "D-Bus hangs", places: []string{""},
		begin: func(f *failingMachine, _ string) {
			f.sh("systemctl start dbus && systemctl kill --signal=STOP dbus; timeout 1 busctl list >/dev/null; [ $? = 124 ]",
				false)
		},
		end: func(f *failingMachine, _ string) { f.sh("systemctl kill --signal=CONT dbus", false) }},
	{name: "systemd re-executes", places: []string{""},
		begin: func(f *failingMachine, _ string) {
			f.sh("rm -f /run/enough; setsid sh -c 'until [ -e /run/enough ]; do systemctl daemon-reexec; sleep 3; done' "+
				"</dev/null >/dev/null 2>&1 &", false)
		},
		end: func(f *failingMachine, _ string) { f.sh("touch /run/enough", false) }},
}

// The moments.
const (
	firstBoot = "first boot"
	restarted = "restart"
	serving   = "serving"
)

var moments = []string{firstBoot, restarted, serving, "update_settings", "apply", "mount_disk", "migrate_disk"}

// applies reports whether a fault can happen in a moment: a file system that is not mounted yet is neither full nor
// read-only, and a first boot has no store.
func (x fault) applies(place, moment string) bool {
	switch {
	case moment == firstBoot:
		return place != "store" && (x.early || place != "data")
	case moment == "mount_disk" && place == "store":
		return x.early
	}
	return true
}

// outcome is a row of the report.
type outcome struct{ fault, place, moment, said, recovered string }

// failingMachine is a machine whose disks fail.
type failingMachine struct {
	busy
	images *fusetest.Images
	disks  map[string]string // paths of the devices in the machine, by image
	target bool              // the store's faults are those of the disk that data migrates to
}

// TestMachineErrors has some of the faults that TestMachineSoakErrors has.
func TestMachineErrors(t *testing.T) {
	t.Parallel()
	underFaults(t, func(x fault, place, moment string) bool {
		return x.name == "ENOSPC" && place == "data" && moment == "apply" ||
			x.name == "EIO" && place == "root" && moment == firstBoot ||
			x.name == "EROFS" && place == "root" && moment == "update_settings"
	}, func([]outcome) {})
}

// underFaults lets the agent work under each fault that is chosen. It must go on answering, or say why not. When the
// fault has ended, a repeated request must succeed, if need be after a restart of the agent or of the machine, the
// store must be complete and the jobs run.
func underFaults(t *testing.T, chosen func(x fault, place, moment string) bool, report func([]outcome)) {
	for _, x := range machineFaults {
		for _, place := range x.places {
			list := slices.DeleteFunc(slices.Clone(moments), func(m string) bool {
				return !x.applies(place, m) || !chosen(x, place, m)
			})
			if len(list) == 0 {
				continue
			}
			t.Run(strings.ReplaceAll(x.name+" "+place, " ", "-"), func(t *testing.T) {
				var all []outcome
				defer func() { report(all) }()
				f := newFailingMachine(t)
				f.hold()
				if list[0] != firstBoot {
					f.release()
					ready(t, f.i)
					f.deploy()
				}
				for _, moment := range list {
					o := f.suffer(x, place, moment)
					t.Logf("%s: %s; %s", moment, o.said, o.recovered)
					all = append(all, o)
					if t.Failed() {
						return // what follows would begin with a broken machine
					}
				}
			})
		}
	}
}

// newFailingMachine makes a machine that is off.
func newFailingMachine(t *testing.T) *failingMachine {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	sizes := map[string]int64{"root": 256 << 20, "data": 512 << 20, "store": 64 << 20, "target": 64 << 20}
	for name, size := range sizes {
		path := filepath.Join(dir, name)
		if err := disk.Create(path, size); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", filepath.Join(dir, "root")).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	f := &failingMachine{images: fusetest.Serve(t, paths...), disks: map[string]string{}}
	l := newLab(t)
	m := manifest([]release.Job{forker()}, tool("0"))
	f.busy = busy{flows: flows{t: t, l: l, m: m}, random: rand.New(rand.NewPCG(1, 1)), tool: "0"}
	f.i = create(t, l, lab.VM{Files: []machine.File{
		{Path: "/usr/local/bin/vcap-disk", Data: []byte(onItsDisk), Mode: 0o755},
		dropIn("bosh-agent", "ExecStartPre=/usr/local/bin/vcap-disk")}})
	for _, path := range paths {
		name := filepath.Base(path)
		a, err := f.i.Attach(t.Context(), machine.Disk{ID: name, Image: f.images.Path(name)})
		if err != nil {
			t.Fatal(err)
		}
		f.disks[name] = a.Path
	}
	err := errors.Join(
		f.i.WriteFile(machine.File{Path: "/etc/vcap-disk", Data: []byte(f.disks["root"] + "\n"), Mode: 0o644}),
		f.i.WriteFile(machine.File{Path: "/etc/vcap-hold", Mode: 0o644}),
		f.i.Change(t.Context(), func(d lab.Document) { d.Set("disks.ephemeral", f.disks["data"]) }))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// hold starts the machine up to the agent's first start.
func (f *failingMachine) hold() {
	f.t.Helper()
	if err := f.i.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.sh("until mountpoint -q /var/vcap; do sleep 0.1; done", false)
}

// release lets the agent start.
func (f *failingMachine) release() {
	f.t.Helper()
	f.sh("rm /etc/vcap-hold", false)
}

// deploy gives the machine its store and its jobs.
func (f *failingMachine) deploy() {
	f.t.Helper()
	f.must([]any{"add_persistent_disk", "store", f.disks["store"]})
	f.must([]any{"mount_disk", "store"})
	run(f.t, f.i, "sh", "-ec", "cd /var/vcap/store; head -c 1M /dev/urandom | split -b 8k; "+
		"head -c 2M /dev/urandom >large; sync")
	f.sum = run(f.t, f.i, "sh", "-c", killSum)
	f.must(f.nextSpec())
	f.must([]any{"start"})
	f.wantWhole("before the faults")
}

// sh runs a script in the machine; some may fail.
func (f *failingMachine) sh(script string, mayFail bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	if _, err := f.i.Output(ctx, "sh", "-c", script); err != nil && !mayFail {
		f.t.Fatal(err)
	}
}

func (f *failingMachine) image(place string) string {
	if place == "store" && f.target {
		return "target"
	}
	return place
}

func (f *failingMachine) path(place string) string {
	if place == "store" && f.target {
		return "/var/vcap/store_migration_target"
	}
	return places[place]
}

// someBlob is an upload of one byte.
var someBlob = map[string]any{"blob_id": "b", "checksum": "6dcd4ce23d88e2ee9568ba546c007c63d9131c1b", "payload": "QQ=="}

// askTimeout bounds a request during a fault; after that the test goes on.
const askTimeout = 30 * time.Second

// ask asks during a fault, and says in a few words what came of it.
func (f *failingMachine) ask(request ...any) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), askTimeout)
	defer cancel()
	hasty := *f.i.Agent
	hasty.Timeout = askTimeout
	value, err := hasty.Do(ctx, request[0].(string), request[1:]...)
	var e *director.Exception
	switch {
	case errors.As(err, &e):
		return "fails: " + words(e.Message)
	case err != nil:
		return fmt.Sprintf("no result within %s", askTimeout)
	}
	if request[0] == "get_state" {
		return "answered"
	}
	return "succeeds: " + words(string(value))
}

var identifiers = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\.cambium-tmp-[A-Z2-7]+|/dev/loop[0-9p]+|[0-9a-f]{32,}`)

// words shortens a message for the report.
func words(text string) string {
	text = strings.Join(strings.Fields(identifiers.ReplaceAllString(text, "…")), " ")
	text = strings.TrimPrefix(text, "Action Failed get_task: Task … result: ")
	if len(text) > 300 {
		text = text[:300] + " …"
	}
	return strings.ReplaceAll(text, "|", "\\|")
}

// state returns the state that `agent status` shows, with the first verdict, problem or warning that is not about
// syslog.
func (f *failingMachine) state(options ...string) string {
	f.t.Helper()
	d := agentStatus(f.t, f.i, options...)
	text := string(d.State)
	for _, more := range append(append([]string{d.Verdict}, d.Problems...), d.Warnings...) {
		if more != "" && !strings.Contains(more, "syslog") {
			text += ": " + more
			break
		}
	}
	return words(text)
}

// suffer lets a fault happen in a moment, and the agent recover.
func (f *failingMachine) suffer(x fault, place, moment string) (o outcome) {
	t := f.t
	t.Helper()
	o = outcome{fault: x.name, place: place, moment: moment}
	var request []any
	f.target = moment == "migrate_disk"
	switch moment {
	case "update_settings":
		request = f.updating().request
	case "apply":
		request = f.nextSpec()
	case "mount_disk":
		f.must([]any{"unmount_disk", "store"})
		request = []any{"mount_disk", "store"}
	case "migrate_disk":
		f.must([]any{"add_persistent_disk", "target", f.disks["target"]})
		f.must([]any{"mount_disk", "target"})
		request = []any{"migrate_disk", "store", "target"}
	}
	x.begin(f, place)
	switch moment {
	case firstBoot:
		f.release()
		o.said = "is " + f.state("--wait=1m")
	case restarted:
		armed(t, f.i)()
		if o.said = "does not answer"; f.answers(20 * time.Second) {
			o.said = "answers"
		}
		o.said += "; is " + f.state()
	case serving:
		o.said = "get_state " + f.ask("get_state") + "; upload_blob " + f.ask("upload_blob", someBlob)
	default:
		o.said = f.ask(request...)
		if !f.answers(20 * time.Second) {
			o.said += "; no pong"
			t.Errorf("%s below %s, %s: no pong during the fault", x.name, place, moment)
		}
	}
	if x.name == "EROFS" && f.path(place) == places[place] {
		if text := f.state(); !strings.Contains(text, "read-only") {
			t.Errorf("%s below %s, %s: the status is %s", x.name, place, moment, text)
		}
	}
	x.end(f, place)
	o.recovered = f.recovers(moment, request)
	return o
}

// answers waits for a pong.
func (f *failingMachine) answers(within time.Duration) bool {
	ctx, cancel := context.WithTimeout(f.t.Context(), within)
	defer cancel()
	return f.i.Ready(ctx) == nil
}

// recovers repeats the request of a moment until it succeeds, with stronger and stronger means, and returns which
// helped.
func (f *failingMachine) recovers(moment string, request []any) string {
	t := f.t
	t.Helper()
	paths := []string{places["root"], places["data"]}
	if moment != "migrate_disk" { // a store whose data migrates is read-only
		paths = append(paths, places["store"])
	}
	var err error
	for n, means := range []struct {
		name string
		act  func() error
	}{
		{"by itself", func() error { return nil }},
		{"after a restart of the agent", func() error {
			f.sh("systemctl restart --no-block bosh-agent", true)
			return nil
		}},
		{"after a reboot", func() error { return errors.Join(f.i.Kill(t.Context()), f.i.Start(t.Context())) }},
	} {
		if err = f.writable(t.Context(), paths...); err != nil && n < 2 {
			continue // a file system that has met an error stays read-only until it is mounted anew
		}
		if err = means.act(); err == nil {
			err = f.whole(moment, request)
		}
		if err == nil {
			return means.name
		}
		t.Logf("%s: %s: %v", moment, means.name, err)
	}
	t.Errorf("%s: no recovery: %v", moment, err)
	return "**no**: " + words(err.Error())
}

// writable reports a file system that is read-only.
func (f *failingMachine) writable(ctx context.Context, paths ...string) error {
	_, err := f.i.Output(ctx, "sh", "-ec",
		"for p in "+strings.Join(paths, " ")+"; do [ ! -d $p ] || { touch $p/.probe; rm $p/.probe; }; done")
	return err
}

// whole has the request repeated, and compares the machine with what it should be.
func (f *failingMachine) whole(moment string, request []any) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	for err := f.i.Ready(ctx); err != nil; err = f.i.Ready(ctx) { // a boot that failed is retried
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	do := func(request ...any) error {
		_, err := f.i.Agent.Do(ctx, request[0].(string), request[1:]...)
		return err
	}
	if moment == firstBoot {
		if state := agentStatus(f.t, f.i).State; state != "ready" {
			return fmt.Errorf("it is %s", f.state())
		}
		f.deploy()
		return nil
	}
	if moment == "migrate_disk" {
		if err := do("mount_disk", "target"); err != nil {
			return err
		}
	}
	if request != nil {
		if err := do(request...); err != nil {
			return err
		}
	}
	if moment == "migrate_disk" { // and back
		for _, r := range [][]any{{"unmount_disk", "store"}, {"mount_disk", "store"},
			{"migrate_disk", "target", "store"}, {"unmount_disk", "target"}, {"remove_persistent_disk", "target"}} {
			if err := do(r...); err != nil {
				return err
			}
		}
		f.target = false
	}
	// What the agent writes to, it can.
	if err := do("upload_blob", someBlob); err != nil {
		return err
	}
	if _, err := f.i.Output(ctx, "mountpoint", "-q", places["store"]); err != nil {
		return err
	}
	if err := errors.Join(f.writable(ctx, slices.Collect(maps.Values(places))...), do("start")); err != nil {
		return err
	}
	if sum, err := f.i.Output(ctx, "sh", "-c", killSum); err != nil || sum != f.sum {
		f.t.Errorf("%s: the sum of the store is %s, want %s (%v)", moment, sum, f.sum, err)
	}
	running := func() bool { return stateOf(f.t, f.i).JobState == "running" }
	eventually.True(f.t, moment+": running jobs", running)
	return nil
}

const faultsHead = "# Faults\n\n" +
	"Written by `go test -tags soak,machine -run SoakErrors ./integration/machine` on %s: %d pairs of a fault and a\n" +
	"moment, in containers. The file system below `/var/vcap` (root), the data disk and the store are ext4 on loop\n" +
	"devices whose images a FUSE server fails or slows down. A migration's store is its target. *Recovered* says\n" +
	"what it took, after the end of the fault, until the repeated request succeeded, all three file systems were\n" +
	"writable, the jobs ran and the store was complete. ext4 stays read-only after an error until it is mounted anew,\n" +
	"hence the reboots. A first boot's fault begins before the agent starts; its data disk is blank then.\n" +
	"\n| fault | below | moment | what the agent said or did | recovered |\n|---|---|---|---|---|\n"

// writeFaults writes the report. Rows of pairs that were not run stay.
func writeFaults(t *testing.T, path string, all []outcome) {
	t.Helper()
	old, _ := os.ReadFile(path) // there may be none
	var rows []string
	for _, x := range machineFaults {
		for _, place := range x.places {
			for _, moment := range moments {
				begin := fmt.Sprintf("| %s | %s | %s |", x.name, place, moment)
				row := ""
				for line := range strings.Lines(string(old)) {
					if strings.HasPrefix(line, begin) {
						row = line
					}
				}
				for _, o := range all {
					if o.fault == x.name && o.place == place && o.moment == moment {
						row = fmt.Sprintf("%s %s | %s |\n", begin, o.said, o.recovered)
					}
				}
				if row != "" {
					rows = append(rows, row)
				}
			}
		}
	}
	page := fmt.Sprintf(faultsHead, time.Now().UTC().Format(time.DateOnly), len(rows)) + strings.Join(rows, "")
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
