//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
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
	engine := qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf},
		HangTimeout: 100 * time.Millisecond}
	made, err := engine.Create(ctx, machine.Spec{Name: "hung", Dir: filepath.Join(t.TempDir(), "hung"),
		Agent: labtest.Agent(t)})
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
	if boots, _ := m.Boots(); boots != 2 {
		t.Errorf("%d boots, want 2", boots)
	}
	console, err := os.ReadFile(m.Console())
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(console, []byte("the kernel did not boot within 100ms; restarting the machine")); n != 1 {
		t.Errorf("the console says it %d times, want once:\n%s", n, console)
	}
	const want = "lab: hung: the kernel did not boot within 100ms; restarting the machine\n"
	if note, err := os.ReadFile(told); err != nil || string(note) != want {
		t.Errorf("the note is %q, %v; want %q", note, err, want)
	}
}
