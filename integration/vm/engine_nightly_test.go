//go:build vm && nightly

package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
)

// TestNightlyVMEngine tests the operations that the other tests rely on: power, disks of every kind that come, grow
// and go, snapshots, files and programs. It looks at the agent only in passing.
func TestNightlyVMEngine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := create(t, l, lab.VM{Ephemeral: 2 * lab.GiB,
		Files: []machine.File{{Path: "/etc/lab/first", Data: []byte("first\n"), Mode: 0o640}}})
	vm := i.Machine.(*qemu.Machine)
	if data, err := i.ReadFile("/etc/lab/first"); err != nil || string(data) != "first\n" {
		t.Errorf("a file of a machine that was never on: %q (%v)", data, err)
	}
	if _, err := i.Attach(t.Context(), machine.Disk{ID: "cold-scsi", Image: blank(t, 64<<20),
		Bus: machine.SCSI}); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if got := run(t, i, "stat", "-c", "%a %U", "/etc/lab/first"); got != "640 root\n" {
		t.Errorf("the lab's file is %q", got)
	}
	t.Logf("programs run %.1f s after power-on", time.Since(begin).Seconds())
	ready(t, i)

	t.Run("programs", func(t *testing.T) {
		var out, words strings.Builder
		err := i.Run(t.Context(), machine.Command{Args: []string{"sh", "-c", "cat; echo $COLOR >&2; exit 3"},
			Env:   []string{"COLOR=blue"},
			Stdin: strings.NewReader(strings.Repeat("x", 200_000)), Stdout: &out, Stderr: &words})
		if err == nil || !strings.Contains(err.Error(), "exit status 3") || out.Len() != 200_000 ||
			words.String() != "blue\n" {
			t.Errorf("a program: %d bytes, %q, %v", out.Len(), words.String(), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := i.Run(ctx, machine.Command{Args: []string{"sleep", "4242"}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a program that takes too long: %v", err)
		}
		eventually.True(t, "the end of an abandoned program", func() bool {
			return !strings.Contains(run(t, i, "ps", "ax"), "sleep 4242")
		})
		if _, err := i.ReadFile("/nowhere"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file that is not there: %v", err)
		}
		big := []byte(strings.Repeat("0123456789abcdef", 1<<16))
		if err := i.WriteFile(machine.File{Path: "/var/tmp/big", Data: big, Mode: 0o600}); err != nil {
			t.Error(err)
		}
		if data, err := i.ReadFile("/var/tmp/big"); err != nil || string(data) != string(big) {
			t.Errorf("a file of 1 MiB came back with %d bytes (%v)", len(data), err)
		}
	})

	t.Run("snapshot", func(t *testing.T) {
		data := i.Disks()[0]
		run(t, i, "sh", "-c", "echo before > /root/mark; echo before > /var/vcap/data/mark; sync")
		begin := time.Now()
		if err := vm.Snapshot(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		t.Logf("snapshot: %.2f s, ephemeral disk is %s", time.Since(begin).Seconds(), data.Path)
		for _, way := range []string{"running", "killed", "with another disk"} {
			run(t, i, "sh", "-c", "echo after > /root/mark; echo after > /var/vcap/data/mark; sync")
			switch way {
			case "killed":
				if err := i.Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
			case "with another disk":
				if _, err := i.Attach(t.Context(), machine.Disk{ID: "later", Image: blank(t, 64<<20)}); err != nil {
					t.Fatal(err)
				}
			}
			begin = time.Now()
			if err := vm.Rewind(t.Context(), "s"); err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			took := time.Since(begin)
			if got := run(t, i, "cat", "/root/mark", "/var/vcap/data/mark"); got != "before\nbefore\n" {
				t.Errorf("%s: after rewinding: %q", way, got)
			}
			t.Logf("rewound while %s: %.2f s", way, took.Seconds())
		}
		ready(t, i)
	})

	t.Run("disks", func(t *testing.T) {
		for id, bus := range map[string]machine.Bus{"vol-virtio-0123456789-longer": machine.Virtio, "vol-scsi": machine.SCSI,
			"vol-nvme": machine.NVMe} {
			a, err := i.Attach(t.Context(), machine.Disk{ID: id, Image: blank(t, 64<<20), Bus: bus})
			if err != nil {
				t.Fatal(err)
			}
			eventually.True(t, a.Path, func() bool {
				_, err := i.Output(t.Context(), "test", "-b", a.Path)
				return err == nil
			})
			run(t, i, "sh", "-c", "echo "+id+" > "+a.Path+" && sync "+a.Path)
			if bus != machine.NVMe {
				if err := i.Resize(t.Context(), id, 96<<20); err != nil {
					t.Fatal(err)
				}
				eventually.True(t, "the new size", func() bool {
					return strings.TrimSpace(run(t, i, "blockdev", "--getsize64", a.Path)) == fmt.Sprint(96<<20)
				})
			}
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := i.Detach(within, id); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the end of "+a.Path, func() bool {
				_, err := i.Output(t.Context(), "test", "-b", a.Path)
				return err != nil
			})
			data := make([]byte, len(id))
			if f, err := os.Open(a.Disk.Image); err != nil {
				t.Error(err)
			} else if _, err := f.Read(data); err != nil || string(data) != id {
				t.Errorf("the image of %s begins with %q (%v)", id, data, err)
			}
		}
	})

	t.Run("power", func(t *testing.T) {
		boots, _ := i.Boots()
		run(t, i, "sh", "-c", "echo durable > /root/durable; sync; echo volatile > /root/volatile; systemctl --no-block reboot")
		eventually.True(t, "a reboot from inside", func() bool { now, _ := i.Boots(); return now == boots+1 })
		ready(t, i)
		// A flush of another file makes the name durable, too, but not what is in it.
		run(t, i, "sh", "-c", "echo 600000 > /proc/sys/vm/dirty_expire_centisecs; echo lost > /root/lost")
		if err := i.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := i.Run(t.Context(), machine.Command{Args: []string{"true"}}); !errors.Is(err, machine.ErrNotRunning) {
			t.Errorf("a program in a machine without power: %v", err)
		}
		if err := i.WriteFile(machine.File{Path: "/etc/lab/second", Data: []byte("second\n"), Mode: 0o600}); err != nil {
			t.Error(err)
		}
		if err := i.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := run(t, i, "cat", "/root/durable", "/root/volatile",
			"/etc/lab/second"); got != "durable\nvolatile\nsecond\n" {
			t.Errorf("after the power cut: %q", got)
		}
		if data, err := i.ReadFile("/root/lost"); len(data) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what was written right before the power cut is there (%q, %v): that was not a power cut", data,
				err)
		}
		within, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := i.Stop(within); err != nil {
			t.Error(err)
		}
		if data, err := i.ReadFile("/root/durable"); err != nil || string(data) != "durable\n" {
			t.Errorf("a file of a machine that is off: %q (%v)", data, err)
		}
		impatient := *i.Agent
		impatient.Timeout = 200 * time.Millisecond
		if _, err := impatient.Call(t.Context(), "ping"); !errors.Is(err, director.ErrTimeout) {
			t.Errorf("the stopped machine's agent: %v, want no answer", err)
		}
	})
}
