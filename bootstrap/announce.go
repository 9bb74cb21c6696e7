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

// Announcer shows a verdict in the journal, on consoles, to the service manager and to the hypervisor. The bus and the
// status file are not its business.
type Announcer struct {
	Root   string // system root, usually "/"
	Log    *logrus.Entry
	Notify func(state string)
	Port   string // device VerdictPort of agent.json; may be empty
}

// guestinfoKey is the key in the VM's configuration under which a vSphere operator finds the verdict.
const guestinfoKey = "guestinfo.cambium.verdict"

// Failed announces a failed boot. It tries all channels, and none may delay the others for long.
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

// Ready announces a successful boot on the consoles and the port.
func (a Announcer) Ready(v engine.Verdict, after time.Duration) {
	line := fmt.Sprintf("%s after %s", v.State, after.Round(time.Millisecond))
	a.console("bosh-agent: " + line)
	a.port(line)
}

// Waiting shows on the console what the boot is waiting for.
func (a Announcer) Waiting(text string) { a.console("bosh-agent: waiting: " + oneline.Of(text)) }

// console writes a line to the system console and to all other consoles of the kernel, one of which is the "serial
// console" page of a cloud.
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

// writeLine writes a line without waiting, because a console that nobody reads can block forever.
func writeLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	_ = f.SetWriteDeadline(time.Now().Add(time.Second)) // not every file has deadlines
	_, err = f.WriteString("\r\n" + line + "\r\n")
	return errors.Join(err, f.Close())
}

// port writes the verdict to the device that agent.json names. What is connected there keeps the line when the VM is
// gone.
func (a Announcer) port(line string) {
	if a.Port == "" {
		return
	}
	if err := tryLine(filepath.Join(a.Root, a.Port), portLine(line)); err != nil {
		a.Log.WithError(err).WithField("device", a.Port).Info("cannot write the verdict to VerdictPort")
	}
}

// portBytes bounds the length of a line for the port.
const portBytes = 1024

// portLine formats a text as one line, cut between two characters if it is too long.
func portLine(text string) string {
	line := oneline.Of(strings.ToValidUTF8(text, "?"))
	for len(line) > portBytes-1 {
		_, last := utf8.DecodeLastRuneInString(line)
		line = line[:len(line)-last]
	}
	return line + "\n"
}

// tryLine appends a line without waiting. The line is lost if it is not read at once.
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
	if _, err := command.Run(ctx, command.Cmd{Name: tool,
		Args: []string{"info-set " + guestinfoKey + " " + line}}); err != nil {
		a.Log.WithError(err).Debug("cannot set guestinfo")
	}
}

// ReadyMarker records on disk that this VM was ready once. A failure is then reported differently: the deploy that
// waits for a new VM gets the reason, while later the resurrector only recognizes silence.
type ReadyMarker struct{ Dirs vcap.Dirs }

// First reports whether agentID was never ready on this disk. The marker of another VM, from which the disk was cloned,
// does not count.
func (m ReadyMarker) First(agentID string) bool {
	have, err := os.ReadFile(m.Dirs.Ready())
	return err != nil || strings.TrimSpace(string(have)) != agentID
}

// Set records that agentID was ready.
func (m ReadyMarker) Set(agentID string) error {
	if !m.First(agentID) {
		return nil
	}
	if err := os.MkdirAll(m.Dirs.Bosh(), 0o700); err != nil {
		return fmt.Errorf("ready marker: %w", err)
	}
	return atomicfile.Write(m.Dirs.Ready(), []byte(agentID+"\n"), 0o600)
}

// errBootOnce means that the machine was rebooted although its secrets were only in memory.
var errBootOnce = errors.New("this VM kept its settings in memory and has been rebooted; recreate it")

// bootOnceSentinels returns the paths of the sentinel files of a machine in tmpfs mode. The one on the tmpfs is created
// first, because a crash between the two must not look like a reboot.
func bootOnceSentinels(dirs vcap.Dirs) []string {
	return []string{dirs.CanRestartMark(), dirs.BootOnce()}
}

// CheckBootOnce returns an error if a machine in tmpfs mode was rebooted. The sentinel on the disk exists only on
// machines that were in that mode, and the one on the tmpfs only until a reboot. Call it before any change of the
// machine.
func CheckBootOnce(dirs vcap.Dirs) error {
	onTmpfs, onDisk := bootOnceSentinels(dirs)[0], bootOnceSentinels(dirs)[1]
	if !atomicfile.Exists(onDisk) || atomicfile.Exists(onTmpfs) {
		return nil
	}
	return errBootOnce
}
