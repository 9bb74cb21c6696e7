package support

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor"
	"cambium/cmd/agent/doctor/observe"
	"cambium/cmd/agent/timeline"
	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/settings/store"
)

// units are those whose journal shows what happened to the agent.
var units = []string{"bosh-agent", "monit", "systemd-networkd", "systemd-resolved"}

// journal returns the command that prints the last lines of units in a boot.
func journal(boot, lines string, units []string) []string {
	argv := []string{"journalctl", "--no-pager", "-b", boot, "-n", lines, "-o", "short-precise"}
	for _, unit := range units {
		argv = append(argv, "-u", unit)
	}
	return argv
}

// programs maps files of the archive to the commands whose output they hold. The commands only read.
var programs = map[string][]string{
	"journal/this-boot.txt":   journal("0", "5000", append(units, "chrony", "chronyd", "systemd-timesyncd")),
	"journal/last-boot.txt":   journal("-1", "3000", units),
	"journal/second-last.txt": journal("-2", "3000", units),
	"journal/kernel.txt":      {"journalctl", "--no-pager", "-k", "-b", "0", "-n", "3000", "-o", "short-precise"},
	"network/addresses.txt":   {"ip", "-d", "-s", "address"},
	"network/routes.txt":      {"ip", "route", "show", "table", "all"},
	"network/neighbors.txt":   {"ip", "neighbor"},
	"network/networkd.txt":    {"networkctl", "--no-pager", "status", "--all"},
	"network/resolver.txt":    {"resolvectl", "--no-pager", "status"},
	"network/sockets.txt":     {"ss", "-tnlp"},
	"network/rules.txt":       {"nft", "list", "ruleset"},
	"disks/blocks.txt":        {"lsblk", "-o", "NAME,KNAME,TYPE,SIZE,FSTYPE,LABEL,UUID,MOUNTPOINTS,RO,MODEL,SERIAL"},
	"disks/space.txt":         {"df", "-k"},
	"disks/inodes.txt":        {"df", "-i"},
	"disks/names.txt":         {"ls", "-lR", "/dev/disk"},
	"units/all.txt":           {"systemctl", "--no-pager", "list-units", "--all"},
	"units/failed.txt":        {"systemctl", "--no-pager", "status", "--state=failed"},
	"units/agent.txt":         {"systemctl", "--no-pager", "show", "bosh-agent", "monit"},
	"units/jobs.txt":          {"systemctl", "--no-pager", "list-jobs"},
	"versions/kernel.txt":     {"uname", "-a"},
	"versions/systemd.txt":    {"systemctl", "--version"},
	"clock.txt":               {"timedatectl", "--no-pager", "status"},
}

// copied maps files of the archive to files of the machine without secrets.
var copied = map[string]string{
	"disks/mounts.txt":        "/proc/self/mountinfo",
	"disks/swaps.txt":         "/proc/swaps",
	"memory.txt":              "/proc/meminfo",
	"network/resolv.conf":     "/etc/resolv.conf",
	"versions/os-release.txt": "/etc/os-release",
	"versions/cmdline.txt":    "/proc/cmdline",
}

// collect returns the files of the archive. A file that cannot be read contains the reason.
func collect(ctx context.Context, o options) []file {
	files := slices.Concat(ownCommands(ctx, o), outputs(ctx, o))
	copies := map[string]string{}
	for name, path := range copied {
		copies[name] = path
	}
	for _, name := range []string{"stemcell_version", "stemcell_git_sha1", "operating_system"} {
		copies["versions/"+name+".txt"] = o.dirs.StemcellFile(name)
	}
	copies["boots.json"] = o.dirs.Boots()
	for name, path := range copies {
		files = append(files, content(name, func() ([]byte, error) { return os.ReadFile(path) }))
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	scrub := secretsOf(o)
	for i := range files {
		files[i].data = scrub.clean(files[i].data)
	}
	return files
}

// ownCommands returns the output of the agent's own commands, one file each.
func ownCommands(ctx context.Context, o options) []file {
	machine := observe.All(ctx, observe.Options{Dirs: o.dirs, Config: o.config, Status: o.status, Timeout: o.timeout})
	findings := doctor.Diagnose(machine)
	var doctorText, doctorJSON, timelineText, timelineJSON, statusJSON bytes.Buffer
	doctor.Print(&doctorText, findings, true)
	say := func(w *bytes.Buffer, err error) {
		if err != nil {
			fmt.Fprintln(w, err)
		}
	}
	say(&doctorJSON, cli.WriteJSON(&doctorJSON, doctor.Report{Findings: findings, Observed: machine}))
	if d, err := status.Read(o.status); err != nil {
		say(&statusJSON, err)
	} else {
		say(&statusJSON, cli.WriteJSON(&statusJSON, d))
		chart := timeline.NewChart(d, d.Age())
		timeline.Text(&timelineText, chart, 120)
		timeline.Blame(&timelineText, chart, 120)
		say(&timelineJSON, cli.WriteJSON(&timelineJSON, chart))
	}
	return []file{{name: "doctor.txt", data: doctorText.Bytes()}, {name: "doctor.json", data: doctorJSON.Bytes()},
		{name: "status.json", data: statusJSON.Bytes()}, {name: "timeline.txt", data: timelineText.Bytes()},
		{
			name: "timeline.json",
			data: timelineJSON.Bytes(),
		}, {name: "versions/agent.txt", data: []byte(o.version + "\n")},
		content("settings.json", func() ([]byte, error) { return redactedSettings(o.dirs) }),
		content("agent.json", func() ([]byte, error) { return redactedConfig(o.config) })}
}

// content returns an entry of the archive for data that may be unavailable.
func content(name string, read func() ([]byte, error)) file {
	data, err := read()
	if err != nil {
		return absent(name, err)
	}
	return file{name: name, data: data}
}

// redactedSettings returns the cached copy without secrets.
func redactedSettings(dirs vcap.Dirs) ([]byte, error) {
	cache, err := store.Open(dirs, store.Options{ReadOnly: true})
	switch {
	case err != nil:
		return nil, err
	case cache.Present():
		return cache.Effective().Settings.Redacted(), nil
	case os.Geteuid() != 0: // the store cannot tell a file that is not there from one that others may not read
		return nil, errors.New(cli.NotChecked)
	}
	return nil, errors.New("there is no usable cached copy")
}

// redactedConfig returns agent.json without the values of headers and the passwords in URLs. If it is not JSON, it is
// left out, because its secrets cannot be recognized.
func redactedConfig(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("left out, since it is not JSON: %w", err)
	}
	clean, err := json.MarshalIndent(redact(document, false), "", "  ")
	return append(clean, '\n'), err
}

func redact(node any, hidden bool) any {
	switch v := node.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = redact(member, hidden || strings.EqualFold(key, "Headers"))
		}
	case []any:
		for i := range v {
			v[i] = redact(v[i], hidden)
		}
	case string:
		if hidden {
			return "***"
		}
		return secret.RedactURL(v)
	}
	return node
}

// secretsOf returns a scrubber for the secrets of all documents that are kept on the machine.
func secretsOf(o options) scrubber {
	effective, _ := redactedSettings(o.dirs) // without them nothing of the documents is public
	config, _ := redactedConfig(o.config)
	public := [][]byte{effective, config}
	var raw [][]byte
	paths := []string{o.config}
	for _, place := range o.dirs.Places() {
		for _, path := range []string{place.Settings(), place.UpdateSettings(), place.DiskHints()} {
			paths = append(paths, path, path+atomicfile.PreviousSuffix)
		}
	}
	for _, path := range paths {
		if data, err := os.ReadFile(path); err == nil {
			raw = append(raw, data)
		}
	}
	s := newScrubber(raw, public)
	if account, err := os.ReadFile(o.dirs.MonitUser()); err == nil {
		if _, password, found := strings.Cut(strings.TrimSpace(string(account)), ":"); found &&
			len(password) >= minSecret {
			s.secrets = append(s.secrets, password)
		}
	}
	return s
}

// outputs runs the programs, a few at a time.
func outputs(ctx context.Context, o options) []file {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		files []file
		slots = make(chan struct{}, 4)
	)
	for name, argv := range programs {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			data, err := output(ctx, o, argv)
			mu.Lock()
			defer mu.Unlock()
			files = append(files, file{name: name, data: data, missing: err})
		})
	}
	all.Wait()
	return files
}

// output runs a program and returns the end of its output. If err is set, the output may be incomplete.
func output(ctx context.Context, o options, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*o.timeout)
	defer cancel()
	out := command.Tail{Max: maxFile + 1} // so that bounded says that something is missing
	_, err := command.Run(ctx, command.Cmd{Name: argv[0], Args: argv[1:], Stdout: &out, Stderr: &out})
	if err != nil {
		fmt.Fprintf(&out, "\n%s: %v\n", argv[0], err)
	}
	return out.Bytes(), err
}
