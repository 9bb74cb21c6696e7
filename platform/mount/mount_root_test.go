//go:build root

package mount

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/eventually"
	"cambium/internal/looptest"
)

func TestMain(m *testing.M) { looptest.Main(m) }

func dir(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "with space")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

func formatted(t testing.TB) *looptest.Device {
	t.Helper()
	d := looptest.New(t, 32<<20)
	if out, err := exec.Command("mkfs.ext4", "-qF", d.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return d
}

func TestRootDevice(t *testing.T) {
	ctx := context.Background()
	d, target, other := formatted(t), dir(t), dir(t)
	if err := MountDevice(ctx, d.Path, target, "ext4", []string{"noatime", "errors=remount-ro"}); err != nil {
		t.Fatal(err)
	}
	e, ok, err := At(target)
	if err != nil || !ok || e.Source != d.Path || !strings.Contains(e.Options, "noatime") ||
		!strings.Contains(e.Super, "errors=remount-ro") {
		t.Errorf("At = %+v, %v, %v", e, ok, err)
	}
	if err := MountDevice(ctx, d.Path, target, "ext4", nil); err != nil {
		t.Errorf("the same mount again: %v, want success", err)
	}
	// Another name of the same device is the same device.
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(d.Path, alias); err != nil {
		t.Fatal(err)
	}
	if err := MountDevice(ctx, alias, target, "ext4", nil); err != nil {
		t.Errorf("the same mount by a link: %v, want success", err)
	}
	if err := MountDevice(ctx, d.Path, other, "ext4", nil); err == nil ||
		!strings.Contains(err.Error(), "it is already mounted on") {
		t.Errorf("a second place: %v, want a refusal", err)
	}
	if err := MountDevice(ctx, formatted(t).Path, target, "ext4", nil); err == nil ||
		!strings.Contains(err.Error(), "is already mounted there") {
		t.Errorf("over another mount: %v, want a refusal", err)
	}
	if err := Unmount(ctx, target); err != nil {
		t.Fatal(err)
	}
	if err := Unmount(ctx, target); err != nil {
		t.Errorf("unmounting what is not mounted: %v", err)
	}
}

func TestRootBindHasNoFlags(t *testing.T) {
	source, target := dir(t), dir(t)
	if err := unix.Mount("source", source, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Bind(context.Background(), source, target); err != nil {
			t.Fatal(err)
		}
	}
	all, err := AllAt(target)
	if err != nil || len(all) != 1 || !strings.HasPrefix(all[0].Options, "rw") || strings.Contains(all[0].Options, "no") {
		t.Errorf("AllAt = %+v, %v; want one mount without flags", all, err)
	}
}

func TestRootTheTopmostIsVisible(t *testing.T) {
	target := dir(t)
	if e, there, err := At(target); there || err != nil {
		t.Errorf("At = %+v, %v; want nothing", e, err)
	}
	for _, source := range []string{"lower", "upper"} {
		if err := unix.Mount(source, target, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if e, there, err := At(target); !there || err != nil || e.Source != source {
			t.Errorf("At = %+v, %v, %v; want %s", e, there, err, source)
		}
	}
	if err := unix.Unmount(target, 0); err != nil {
		t.Fatal(err)
	}
}

func TestRootUnmountNamesWhoIsBusy(t *testing.T) {
	d, target := formatted(t), dir(t)
	if err := MountDevice(context.Background(), d.Path, target, "ext4", nil); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(target, "log")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("tail", "-f", file)
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = holder.Wait(); close(ended) }()
	t.Cleanup(func() { _ = holder.Process.Kill(); <-ended })

	eventually.True(t, "one user of "+target, func() bool {
		users, err := users(target)
		return err == nil && len(users) == 1
	})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := Unmount(ctx, target)
	var busy *BusyError
	if !errors.As(err, &busy) || len(busy.Users) != 1 || busy.Users[0].PID != holder.Process.Pid ||
		busy.Users[0].Command != "tail" || busy.Users[0].Path != file {
		t.Fatalf("Unmount = %v, want the process with pid %d", err, holder.Process.Pid)
	}

	// The end of the process is what the next attempt waits for, not a clock.
	reported := make(chan struct{}, 10)
	done := make(chan error, 1)
	go func() {
		done <- UnmountReporting(context.Background(), target, func([]Process) { reported <- struct{}{} })
	}()
	<-reported
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Unmount after the process ended: %v", err)
	}
	if _, there, _ := At(target); there {
		t.Error("still mounted")
	}
}

func TestRootMountsOfADevice(t *testing.T) {
	ctx := context.Background()
	d, target, bound := formatted(t), dir(t), dir(t)
	if err := MountDevice(ctx, d.Path, target, "ext4", nil); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(target, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Bind(ctx, sub, bound); err != nil {
		t.Fatal(err)
	}
	n, err := blkdev.NumberOf(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := Of(n)
	if err != nil || len(mounts) != 1 || mounts[0].Target != target {
		t.Errorf("Of = %+v, %v; want only %s", mounts, err, target)
	}
	if err := Unmount(ctx, target); err != nil {
		t.Fatal(err)
	}
	if used, err := Uses(n); err != nil || !used {
		t.Errorf("Uses = %v, %v; want true because of the bind", used, err)
	}
}

func TestRootAwaitIdle(t *testing.T) {
	d, target := formatted(t), dir(t)
	if err := AwaitIdle(context.Background(), d.Path); err != nil {
		t.Errorf("AwaitIdle of an idle device: %v", err)
	}
	if err := MountDevice(context.Background(), d.Path, target, "ext4", nil); err != nil {
		t.Fatal(err)
	}
	if err := AwaitIdle(context.Background(), d.Path); !errors.Is(err, unix.EBUSY) {
		t.Errorf("AwaitIdle of a mounted device = %v, want EBUSY", err)
	}
}

// TestRootAwaitIdleAfterKill: AwaitIdle does not give up after a program was killed while writing: the kernel still
// writes back its data, although no process has the device open.
func TestRootAwaitIdleAfterKill(t *testing.T) {
	const device = "CAMBIUM_WRITE_AND_DIE"
	if path := os.Getenv(device); path != "" {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_EXCL, 0)
		if err == nil {
			_, err = f.Write(make([]byte, 256<<20))
		}
		t.Logf("still alive: %v, %v", err, unix.Kill(os.Getpid(), unix.SIGKILL))
		select {}
	}
	d := looptest.New(t, 512<<20)
	for range 3 {
		writer := exec.Command(os.Args[0], "-test.run=^TestRootAwaitIdleAfterKill$")
		writer.Env = append(os.Environ(), device+"="+d.Path)
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		// From when it has begun until it has nothing open any more, as far as /proc tells.
		for _, there := range []bool{true, false} {
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
				if users, err := openers(d.Path); err != nil || (len(users) > 0) == there {
					break
				}
			}
		}
		if err := AwaitIdle(context.Background(), d.Path); err != nil {
			t.Errorf("after the writer was killed: %v", err)
		}
		_ = writer.Wait()
	}
}

// TestRootPrivateNamespaceDoesNotPin: a service with a private mount namespace keeps its copy of a mount until it is
// detached.
func TestRootPrivateNamespaceDoesNotPin(t *testing.T) {
	d, target := formatted(t), dir(t)
	if err := MountDevice(context.Background(), d.Path, target, "ext4", nil); err != nil {
		t.Fatal(err)
	}
	service := exec.Command("sleep", "1000")
	service.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	if err := Unmount(context.Background(), target); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := AwaitIdle(limited, d.Path); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("the namespace does not hold the device (%v), so there is nothing to show", err)
	}
	n, err := blkdev.NumberOf(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	was := Entry{Source: d.Path, Number: n, Root: "/"}
	changed, err := DetachElsewhere(was)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, p := range changed {
		found = found || p.PID == service.Process.Pid
	}
	if !found {
		t.Errorf("changed %v, want process %d", changed, service.Process.Pid)
	}
	if err := AwaitIdle(context.Background(), d.Path); err != nil {
		t.Errorf("the device is still held: %v", err)
	}
	if second, err := DetachElsewhere(was); err != nil || len(second) != 0 {
		t.Errorf("a second time changed %v, %v", second, err)
	}
}

// TestRootOptionsOfMount: options of mount(8) have their effect, and those for other programs are ignored.
func TestRootOptionsOfMount(t *testing.T) {
	d, target := formatted(t), dir(t)
	options := []string{"nosymfollow,iversion", "X-mount.mkdir=0700", "x-systemd.requires=/"}
	if err := MountDevice(t.Context(), d.Path, target, "ext4", options); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(target, "link")
	if err := os.Symlink("lost+found", link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(link); !errors.Is(err, unix.ELOOP) {
		t.Errorf("stat of a link = %v, want that links are not followed", err)
	}
}
