package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/bootstrap/engine"
	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/oneline"
	"cambium/internal/vcap"
)

// Announcer carries a verdict to journal, consoles, service manager and hypervisor. The bus and the
// status file have their own ways.
type Announcer struct {
	Root   string // system root, normally "/"
	Log    *logrus.Entry
	Notify func(state string)
	Port   string // the device of VerdictPort in agent.json, empty if there is none
}

// guestinfoKey is the key under which a vSphere operator finds the verdict in the VM's configuration.
const guestinfoKey = "guestinfo.cambium.verdict"

// Failed announces a failed boot. Each channel is tried; none may hold up the others for long.
func (a Announcer) Failed(ctx context.Context, v engine.Verdict) {
	line := v.Line()
	// Test suites and log drains look for ERROR and "App setup" in one line.
	a.Log.Error("App setup failed: " + line)
	a.console("bosh-agent: not ready: " + line)
	if a.Notify != nil {
		a.Notify("STATUS=failed: " + line)
	}
	a.port("not ready: " + line)
	a.guestinfo(ctx, line)
}

// Ready announces a boot that ended well to the consoles and the port.
func (a Announcer) Ready(v engine.Verdict, after time.Duration) {
	line := fmt.Sprintf("%s after %s", v.State, after.Round(time.Millisecond))
	a.console("bosh-agent: " + line)
	a.port(line)
}

// Waiting tells the console what the boot waits for.
func (a Announcer) Waiting(text string) { a.console("bosh-agent: waiting: " + oneline.Of(text)) }

// console writes to the system console and to every other console the kernel uses, which is
// where a cloud's "serial console" page looks.
func (a Announcer) console(line string) {
	targets := []string{"console"}
	if active, err := os.ReadFile(filepath.Join(a.Root, "sys/class/tty/console/active")); err == nil {
		// The last one is the target of /dev/console.
		if names := strings.Fields(string(active)); len(names) > 1 {
			targets = append(targets, names[:len(names)-1]...)
		}
	}
	var failed []error
	written := false
	for _, name := range targets {
		if err := writeLine(filepath.Join(a.Root, "dev", name), line); err != nil {
			failed = append(failed, err)
		} else {
			written = true
		}
	}
	if !written {
		a.Log.WithError(errors.Join(failed...)).Debug("cannot write the verdict to any console")
	}
}

// writeLine never waits: a console that is not read can block a writer forever.
func writeLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	_ = f.SetWriteDeadline(time.Now().Add(time.Second)) // not every file has deadlines
	_, err = f.WriteString("\r\n" + line + "\r\n")
	return errors.Join(err, f.Close())
}

// port writes the verdict to the device that agent.json names. What is behind it keeps the line when the VM is gone.
func (a Announcer) port(line string) {
	if a.Port == "" {
		return
	}
	if err := tryLine(filepath.Join(a.Root, a.Port), portLine(line)); err != nil {
		a.Log.WithError(err).WithField("device", a.Port).Info("cannot write the verdict to VerdictPort")
	}
}

// portBytes bounds a line of the port.
const portBytes = 1024

// portLine is one line with its end. It is cut between two characters if it is too long.
func portLine(text string) string {
	line := oneline.Of(strings.ToValidUTF8(text, "?"))
	for len(line) > portBytes-1 {
		_, last := utf8.DecodeLastRuneInString(line)
		line = line[:len(line)-last]
	}
	return line + "\n"
}

// tryLine appends a line, and does not wait: what is not read at once is lost.
func tryLine(path, line string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	n, err := unix.Write(fd, []byte(line))
	switch {
	case err != nil:
		err = &os.PathError{Op: "write", Path: path, Err: err}
	case n < len(line):
		err = &os.PathError{Op: "write", Path: path, Err: io.ErrShortWrite}
	}
	return errors.Join(err, unix.Close(fd))
}

func (a Announcer) guestinfo(ctx context.Context, line string) {
	tool := command.Find("vmware-rpctool")
	if tool == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := command.Run(ctx, command.Cmd{Name: tool, Args: []string{"info-set " + guestinfoKey + " " + line}}); err != nil {
		a.Log.WithError(err).Debug("cannot set guestinfo")
	}
}

// ReadyMarker remembers on disk that this VM has been ready once. It decides how a failure is
// reported: the deploy that waits for a new VM gets the reason, while later the resurrector
// only recognizes silence.
type ReadyMarker struct{ Dirs vcap.Dirs }

// First reports whether agentID has never been ready on this disk. A disk cloned from another
// VM carries that VM's marker, which does not count.
func (m ReadyMarker) First(agentID string) bool {
	have, err := os.ReadFile(m.Dirs.Ready())
	return err != nil || strings.TrimSpace(string(have)) != agentID
}

// Set marks agentID as having been ready.
func (m ReadyMarker) Set(agentID string) error {
	if !m.First(agentID) {
		return nil
	}
	if err := os.MkdirAll(m.Dirs.Bosh(), 0o700); err != nil {
		return fmt.Errorf("ready marker: %w", err)
	}
	return atomicfile.Write(m.Dirs.Ready(), []byte(agentID+"\n"), 0o600)
}

// errBootOnce means that the machine was rebooted although its secrets lived in memory only.
var errBootOnce = errors.New("this VM kept its settings in memory and has been rebooted; recreate it")

// bootOnceSentinels are the marks of a machine in tmpfs mode. The one on tmpfs comes first: a crash in
// between must not look like a reboot.
func bootOnceSentinels(dirs vcap.Dirs) []string {
	return []string{dirs.CanRestartMark(), dirs.BootOnce()}
}

// CheckBootOnce refuses a reboot of a machine in tmpfs mode. It comes before any side effect:
// the sentinel on disk exists only on machines that were in that mode, its twin on the tmpfs
// only as long as the boot lasts.
func CheckBootOnce(dirs vcap.Dirs) error {
	onTmpfs, onDisk := bootOnceSentinels(dirs)[0], bootOnceSentinels(dirs)[1]
	if !atomicfile.Exists(onDisk) || atomicfile.Exists(onTmpfs) {
		return nil
	}
	return errBootOnce
}
