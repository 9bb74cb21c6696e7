//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/looptest"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
	"cambium/lab/notes"
	"cambium/lab/tree"
)

// TestVMHungKernel: no kernel comes up in a tenth of a second. The machine is started again, once, and then left alone.
func TestVMHungKernel(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64", "qemu-img")
	told := filepath.Join(t.TempDir(), "notes")
	t.Setenv(notes.NotesFile, told)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	engine := qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}, HangTimeout: 100 * time.Millisecond}
	made, err := engine.Create(ctx, machine.Spec{Name: "hung", Dir: filepath.Join(t.TempDir(), "hung"), Agent: labtest.Agent(t)})
	if err != nil {
		t.Fatal(err)
	}
	m := made.(*qemu.Machine)
	t.Cleanup(func() {
		if err := m.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for boots, _ := m.Boots(); boots < 2; boots, _ = m.Boots() {
		if ctx.Err() != nil {
			t.Fatal("the machine is not started again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := m.Run(ctx, machine.Command{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
	if got := filters(t, "hung"); len(got) == 0 || strings.Trim(got, "2") != "" {
		t.Errorf("the threads of QEMU have the system call filters %q, want all to have one (2)", got)
	}
	if boots, _ := m.Boots(); boots != 2 {
		t.Errorf("%d boots, want 2", boots)
	}
	console, err := os.ReadFile(m.Console())
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(console, []byte("the kernel did not come up within 100ms; the machine is started again")); n != 1 {
		t.Errorf("the console says it %d times, want once:\n%s", n, console)
	}
	const want = "lab: hung: the kernel did not come up within 100ms; the machine is started again\n"
	if note, err := os.ReadFile(told); err != nil || string(note) != want {
		t.Errorf("the note is %q, %v; want %q", note, err, want)
	}
}

// filters are the seccomp modes of all threads of the QEMU of a machine: 2 is a filter.
func filters(t *testing.T, name string) (modes string) {
	t.Helper()
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		line, _ := os.ReadFile(path)
		if !bytes.HasPrefix(line, []byte("qemu-system-x86_64\x00-name\x00"+name+"\x00")) {
			continue
		}
		threads, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "task/*/status"))
		for _, thread := range threads {
			status, _ := os.ReadFile(thread)
			_, after, _ := strings.Cut(string(status), "\nSeccomp:\t")
			mode, _, _ := strings.Cut(after, "\n")
			modes += mode
		}
	}
	return modes
}
