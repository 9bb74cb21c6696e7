// Package reboot determines why the machine went down: from its journal during the shutdown, or from what a crash has
// left. It changes nothing. Jobs can write to the journal, so its content is only shown to people and decides nothing.
package reboot

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"cambium/internal/command"
	"cambium/internal/oneline"
)

// lines and limit bound the part of a journal that is read, and the time for that.
const (
	lines = "--lines=2000"
	limit = 5 * time.Second
)

// Journal returns the end of the journal of this boot or the previous one, or "".
func Journal(ctx context.Context, previous bool) string {
	program := command.Find("journalctl")
	if program == "" {
		return ""
	}
	boot := "--boot=0"
	if previous {
		boot = "--boot=-1"
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out bytes.Buffer
	_, _ = command.Run(ctx, command.Cmd{Name: program, Stdout: &out, // a journal in memory has no previous boot
		Args: []string{boot, lines, "--output=short", "--quiet", "--no-pager"}})
	return out.String()
}

// Traces of a requested shutdown in a journal. Only names of users and programs are extracted, since arguments may be
// secret.
var (
	byClient = regexp.MustCompile(
		`(?i)(?:reboot|power-?off|halt|kexec|shutdown) requested from client PID \d+ \('([^']{1,40})'\)`)
	bySudo = regexp.MustCompile(
		`sudo\[\d+\]: +(\S{1,40}) : .*COMMAND=\S*?\b(reboot|shutdown|poweroff|halt|systemctl)\b`)
	byButton = "Power key pressed"
)

// Requester returns who requested the shutdown according to the journal, or "".
func Requester(journal string) string {
	last := ""
	for line := range strings.Lines(journal) {
		if m := byClient.FindStringSubmatch(line); m != nil && last == "" {
			last = "the program " + m[1]
		}
		if m := bySudo.FindStringSubmatch(line); m != nil {
			last = fmt.Sprintf("%s (sudo %s)", m[1], m[2])
		}
		if strings.Contains(line, byButton) {
			last = "the IaaS (power button)"
		}
	}
	return last
}

// orderly matches the lines that systemd and logind write during an orderly shutdown.
var orderly = regexp.MustCompile(`(?i)systemd(?:-logind)?\[\d+\]: ` +
	`(?:The system will (reboot|power|halt)[a-z ]* now!|System is (reboot|power|halt)ing|` +
	`Reached target .*\b(reboot|power ?off|halt)\b)`)

// Requested describes the orderly shutdown that ended a boot, according to that boot's journal, or returns "".
func Requested(journal string) string {
	all := orderly.FindAllStringSubmatch(journal, -1)
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	how := map[string]string{"r": "reboot", "p": "poweroff",
		"h": "halt"}[strings.ToLower((last[1] + last[2] + last[3])[:1])]
	if by := Requester(journal); by != "" {
		return "requested (" + how + ") by " + by
	}
	return "requested (" + how + ")"
}

// Traces of a crash in kernel messages.
var (
	panicked    = regexp.MustCompile(`Kernel panic - not syncing: (.*)`)
	outOfMemory = regexp.MustCompile(`Out of memory: Killed process \d+ \(([^)]*)\)`)
)

// inMessages describes a crash found in kernel messages, or returns "". where is their origin.
func inMessages(text, where string) string {
	if m := panicked.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("the kernel panicked: %s (%s)", oneline.Of(m[1]), where)
	}
	if m := outOfMemory.FindAllStringSubmatch(text, -1); m != nil {
		return fmt.Sprintf("the memory was used up, and the kernel killed %s before (%s)",
			oneline.Of(m[len(m)-1][1]), where)
	}
	return ""
}

// recordBytes bounds the size read from a crash record.
const recordBytes = 1 << 20

// CrashCause describes a crash after a given time, according to the kernel's records in pstore, or where systemd moves
// them, the journal of the previous boot, or the watchdog's status. It returns "" if none of them mentions one.
func CrashCause(root, journal string, since time.Time) (cause string) {
	for _, dir := range []string{"sys/fs/pstore", "var/lib/systemd/pstore"} {
		dir = filepath.Join(root, dir)
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil // unreadable
			}
			if info, err := entry.Info(); err != nil || info.ModTime().Before(since) {
				return nil
			}
			data, err := readStart(path)
			if found := inMessages(string(data), path); err == nil && found != "" {
				cause = found
			}
			return nil
		})
		if cause != "" {
			return cause
		}
	}
	if cause = inMessages(journal, "journal"); cause != "" {
		return cause
	}
	found, _ := filepath.Glob(filepath.Join(root, "sys/class/watchdog/watchdog*/bootstatus"))
	for _, path := range found {
		var bits int
		const reset = 0x20 // WDIOF_CARDRESET
		data, err := os.ReadFile(path)
		if _, scanErr := fmt.Sscan(string(data), &bits); err == nil && scanErr == nil && bits&reset != 0 {
			return "the watchdog reset the machine"
		}
	}
	return ""
}

func readStart(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, recordBytes)
	n, err := f.Read(data)
	return data[:n], err
}
