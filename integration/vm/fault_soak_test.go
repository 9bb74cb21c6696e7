//go:build vm && soak

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/machine"
)

// vmFault is one that a container shares with its host, or does not have.
type vmFault struct{ name, begin, end string }

var vmFaults = []vmFault{
	{"the agent is killed for its memory, again and again",
		"systemctl set-property --runtime bosh-agent.service MemoryMax=4M",
		"systemctl set-property --runtime bosh-agent.service MemoryMax=infinity"},
	{"a process takes all memory, and is killed",
		"systemd-run --quiet --unit=hog sh -c 'while :; do perl -e \"\\$x = q(x) x (4 << 30)\" || true; sleep 1; done'",
		"systemctl stop hog"},
	{"the clock jumps a day ahead", "date -s '+1 day'", "date -s '-1 day'"},
	{"the clock jumps a day back", "date -s '-1 day'", "date -s '+1 day'"},
	{"udev restarts, again and again",
		"systemd-run --quiet --unit=udev-restarts sh -c 'while :; do systemctl restart systemd-udevd; sleep 1; done'",
		"systemctl stop udev-restarts; systemctl start systemd-udevd; udevadm settle"},
}

// TestVMSoakFaults has the faults that need a kernel of their own, and writes docs/results/faults-vm.md. Under each a
// disk is plugged in and mounted and the agent is restarted; after it both succeed.
func TestVMSoakFaults(t *testing.T) {
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB})
	ready(t, i)
	var rows strings.Builder
	for n, x := range vmFaults {
		cid := fmt.Sprintf("vol-%d", n)
		image := blank(t, 128<<20)
		run(t, i, "sh", "-c", x.begin)
		if _, err := i.Attach(t.Context(), machine.Disk{ID: cid, Image: image}); err != nil {
			t.Fatal(err)
		}
		mounted := tried(t, i, cid)
		run(t, i, "systemctl", "kill", "--signal=KILL", "--kill-who=main", "bosh-agent")
		during, cancel := context.WithTimeout(t.Context(), time.Minute)
		answered := i.Ready(during) == nil
		cancel()
		run(t, i, "sh", "-c", x.end)
		eventually.Within(t, readyTimeout, x.name+": the agent after the fault", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			return i.Ready(ctx)
		})
		does(t, i, "add_persistent_disk", cid, "/dev/disk/by-id/virtio-"+cid)
		does(t, i, "mount_disk", cid)
		onStore(t, i, "virtio-"+cid)
		does(t, i, "unmount_disk", cid)
		does(t, i, "remove_persistent_disk", cid)
		if err := i.Detach(t.Context(), cid); err != nil {
			t.Fatal(err)
		}
		restarted := map[bool]string{true: "answers", false: "does not answer"}[answered]
		t.Logf("%s: mount_disk %s; after a restart it %s", x.name, mounted, restarted)
		fmt.Fprintf(&rows, "| %s | %s | %s | yes |\n", x.name, mounted, restarted)
	}
	page := fmt.Sprintf("# Faults of a VM\n\n"+
		"Written by `go test -tags soak,vm -run SoakFaults ./integration/vm` on %s. Under each fault a blank disk is\n"+
		"plugged in and mounted, then the agent is killed. *Recovered*: after the fault, without further help, the agent\n"+
		"answers and mounts the disk.\n\n"+
		"| fault | mount_disk during the fault | a restarted agent during the fault | recovered |\n|---|---|---|---|\n%s",
		time.Now().UTC().Format(time.DateOnly), rows.String())
	if err := os.WriteFile("../../docs/results/faults-vm.md", []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tried asks for a disk during a fault, and says what came of it.
func tried(t *testing.T, i *lab.Instance, cid string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asking := *i.Agent
	asking.Timeout = 20 * time.Second
	add := []any{"add_persistent_disk", cid, "/dev/disk/by-id/virtio-" + cid}
	for _, request := range [][]any{add, {"mount_disk", cid}, {"unmount_disk", cid}} {
		_, err := asking.Do(ctx, request[0].(string), request[1:]...)
		var e *director.Exception
		switch {
		case errors.As(err, &e):
			return fmt.Sprintf("fails: %s: %s", request[0], e.Message)
		case err != nil:
			return fmt.Sprintf("has no result: %s", request[0])
		}
	}
	return "succeeds"
}
