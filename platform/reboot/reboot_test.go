package reboot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRequester(t *testing.T) {
	for _, c := range []struct{ name, journal, want string }{
		{"nobody", "Nov 18 10:00:00 vm systemd[1]: Stopping bosh-agent.service...\n", ""},
		{"sudo", "Nov 18 10:00:00 vm sudo[812]:     vcap : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/sbin/reboot --message secret\n", "vcap (sudo reboot)"},
		{"another command", "Nov 18 10:00:00 vm sudo[812]:     vcap : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/ls /\n", ""},
		{"the last one", "Nov 18 10:00:00 vm sudo[8]: a : COMMAND=/sbin/shutdown +5\nNov 18 10:01:00 vm sudo[9]: b : COMMAND=/usr/bin/systemctl reboot\n", "b (sudo systemctl)"},
		{"systemd", "Nov 18 10:00:00 vm systemd[1]: Reboot requested from client PID 77 ('systemctl') (unit session-3.scope)...\n", "the program systemctl"},
		{"the IaaS", "Nov 18 10:00:00 vm systemd-logind[80]: Power key pressed short.\n", "the IaaS (power button)"},
	} {
		if got := Requester(c.journal); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestRequested(t *testing.T) {
	const client = "Nov 18 10:00:00 vm systemd[1]: Reboot requested from client PID 77 ('systemctl') (unit a.scope)...\n"
	for _, c := range []struct{ name, journal, want string }{
		{"a power cut", "Nov 18 10:00:00 vm systemd[1]: Started bosh-agent.service.\n", ""},
		{"a target of another name", "Nov 18 10:00:00 vm systemd[1]: Reached target multi-user.target - Multi-User System.\n", ""},
		{"logind", "Nov 18 10:00:00 vm systemd-logind[80]: The system will reboot now!\n", "requested (reboot)"},
		{"a shutdown that was called off", "Nov 18 10:00:00 vm systemd-logind[80]: The system will reboot at Wed 2026-11-18 11:00:00 UTC!\n", ""},
		{"halt", "Nov 18 10:00:00 vm systemd-logind[80]: System is halting.\n", "requested (halt)"},
		{"power", "Nov 18 10:00:00 vm systemd-logind[80]: The system will power off now!\n", "requested (poweroff)"},
		{"logind, later", "Nov 18 10:00:00 vm systemd-logind[80]: System is powering down.\n", "requested (poweroff)"},
		{"systemd", client + "Nov 18 10:00:09 vm systemd[1]: Reached target reboot.target - System Reboot.\n",
			"requested (reboot) by the program systemctl"},
		{"jammy", "Nov 18 10:00:09 vm systemd[1]: Reached target System Power Off.\n", "requested (poweroff)"},
		{"a job", "Nov 18 10:00:09 vm job[77]: Reached target reboot.target\n", ""},
	} {
		if got := Requested(c.journal); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCrash(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	const panicText = "<0>[ 9.1] Kernel panic - not syncing: Fatal exception\n<4>[ 9.2] CPU: 0\n"
	for _, c := range []struct {
		name    string
		files   map[string]string
		old     bool
		journal string
		want    string
	}{
		{name: "nothing was written", journal: "Nov 18 vm kernel: all is well\n"},
		{name: "a panic in pstore", files: map[string]string{"sys/fs/pstore/dmesg-efi-1": panicText}, want: "the kernel panicked: Fatal exception (ROOT/sys/fs/pstore/dmesg-efi-1)"},
		{name: "a panic that systemd has moved", files: map[string]string{"var/lib/systemd/pstore/17/dmesg.txt": panicText},
			want: "the kernel panicked: Fatal exception (ROOT/var/lib/systemd/pstore/17/dmesg.txt)"},
		{name: "a panic of an earlier boot", files: map[string]string{"var/lib/systemd/pstore/17/dmesg.txt": panicText}, old: true},
		{name: "memory", journal: "vm kernel: Out of memory: Killed process 12 (java) total-vm:1kB\n", want: "the memory was used up, and the kernel killed java before (journal)"},
		{name: "watchdog", files: map[string]string{"sys/class/watchdog/watchdog0/bootstatus": "32\n"}, want: "the watchdog reset the machine"},
		{name: "watchdog without a reset", files: map[string]string{"sys/class/watchdog/watchdog0/bootstatus": "0\n"}},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.old {
				if err := os.Chtimes(path, since, since.Add(-time.Hour)); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := strings.ReplaceAll(c.want, "ROOT", root)
		if got := CrashCause(root, c.journal, since); got != want {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
}
