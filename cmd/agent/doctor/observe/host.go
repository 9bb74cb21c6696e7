package observe

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/agent/task"
	"cambium/internal/bounded"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/platform/firewall"
	"cambium/platform/mount"
	"cambium/platform/network"
	"cambium/platform/network/neighbor"
	"cambium/platform/unit"
	"cambium/storage/recordfile"
)

// agentUnit is the name of the agent's unit on all stemcells.
const agentUnit = "bosh-agent"

// localTimeout bounds each query of a program on this machine.
const localTimeout = 2 * time.Second

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func agentState(ctx context.Context, o Options) (found Agent) {
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	doc, err := status.Observe(o.Status)
	if err != nil {
		found.StatusErr = err.Error()
	} else {
		found.Status, found.Running = &doc, doc.State != status.NotRunning
	}
	if s, known := unitState(ctx, agentUnit); known {
		found.Unit, found.Restarts = s.Active+" ("+s.Sub+")", s.Restarts
		found.MainPID = s.MainPID
	}
	found.PIDs = agents(o.Dirs)
	return found
}

// Restarts returns the number of systemd's automatic restarts of the agent.
func Restarts(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	s, _ := unitState(ctx, agentUnit)
	return s.Restarts
}

// unitState returns systemd's state of a unit. known is false if systemd does not run, cannot be asked or has no such
// unit.
func unitState(ctx context.Context, name string) (s unit.State, known bool) {
	if !unit.Booted("/") {
		return s, false
	}
	systemd := &unit.Systemd{Root: "/", Log: quiet()}
	defer systemd.Close()
	s, err := systemd.State(ctx, name)
	return s, err == nil && s.Load != "not-found"
}

func units(ctx context.Context) (found Units) {
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	if !unit.Booted("/") {
		return found
	}
	systemd := &unit.Systemd{Root: "/", Log: quiet()}
	defer systemd.Close()
	failed, err := systemd.Failed(ctx)
	if err != nil {
		found.Err = err.Error()
	}
	found.Failed = failed
	return found
}

// gatewayTimeout bounds the wait for a gateway's reply to ARP or neighbor discovery.
const gatewayTimeout = 1500 * time.Millisecond

func links(ctx context.Context, timeout time.Duration) (found Network) {
	k := &network.Kernel{Root: "/", Log: quiet()}
	state, err := k.Observe(ctx)
	if err != nil {
		found.Err = err.Error()
		return found
	}
	found.State = state
	var gateways []neighbor.Gateway
	for _, r := range state.Routes {
		if r.Default() && r.Gateway.IsValid() {
			gateways = append(gateways, neighbor.Gateway{Link: r.Link, IP: r.Gateway})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, min(gatewayTimeout, timeout))
	defer cancel()
	var asked sync.WaitGroup
	asked.Go(func() { found.Duplicates = neighbor.Duplicates(ctx, state) })
	defer asked.Wait()
	answering := map[neighbor.Gateway]bool{}
	for _, g := range neighbor.Answering(ctx, state, gateways) {
		answering[g] = true
	}
	for _, g := range gateways {
		found.Gateways = append(found.Gateways, Gateway{Link: g.Link, IP: g.IP.String(), Answers: answering[g]})
	}
	return found
}

// drops returns nothing if nftables is missing or may not be read.
func drops(ctx context.Context) []string {
	found, err := (&firewall.Firewall{Log: quiet()}).ForeignDrops(ctx)
	if err != nil {
		return nil
	}
	return found
}

// failedFileSystems returns the devices whose file system ext4 has made read-only after an error. Newer kernels show
// that as a mount option, and not as a flag.
func failedFileSystems(table []mount.Entry) map[uint64]bool {
	failed := map[uint64]bool{}
	for _, e := range table {
		if slices.Contains(strings.Split(e.Super, ","), "emergency_ro") {
			failed[uint64(e.Number)] = true
		}
	}
	return failed
}

// fileSystems returns the file systems that the agent writes to, each once.
func fileSystems(dirs vcap.Dirs) (found []FileSystem) {
	seen := map[uint64]bool{}
	table, _ := mount.Table() // without it, the flags remain
	failed := failedFileSystems(table)
	var journal unix.Stat_t
	_ = unix.Stat("/var/log/journal", &journal) // there may be none
	for _, path := range []string{"/", dirs.Bosh(), dirs.SettingsTmpfs(), dirs.Data(), dirs.SysRun(), dirs.Store(),
		"/var/log", "/tmp", "/run"} {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		var of unix.Statfs_t
		if unix.Stat(path, &st) != nil || seen[st.Dev] || !info.IsDir() || unix.Statfs(path, &of) != nil {
			continue
		}
		seen[st.Dev] = true
		block := uint64(of.Frsize)
		found = append(found, FileSystem{Path: path, Size: of.Blocks * block, Free: of.Bavail * block, Inodes: of.Files,
			FreeInodes: of.Ffree,
			Journal:    journal.Ino != 0 && journal.Dev == st.Dev, ReadOnly: of.Flags&unix.ST_RDONLY != 0 || failed[st.Dev]})
	}
	return found
}

// persistentDisk compares the record of the mounted disk with the mounts. told is the CID in
// managed_disk_settings.json.
func persistentDisk(dirs vcap.Dirs, told string) Disk {
	found := Disk{CID: told}
	if r, err := recordfile.In(dirs).Read(); err == nil {
		found.CID, _ = r.StoreDisk(told)
	}
	entry, mounted, err := mount.At(dirs.Store())
	if err != nil || !mounted {
		return found
	}
	found.Mounted = entry.Source
	// The kernel removes this link with the device, also while a file system on it is mounted.
	link := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(uint64(entry.Number)), unix.Minor(uint64(entry.Number)))
	_, err = os.Stat(link)
	found.Gone = os.IsNotExist(err) && filepath.IsAbs(entry.Source)
	return found
}

func supervisor(ctx context.Context, dirs vcap.Dirs) (found Supervisor) {
	if _, err := os.Stat(dirs.MonitUser()); err != nil {
		return found
	}
	found.Expected = true
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	client := &monit.Client{URL: monit.DefaultURL, UserFile: dirs.MonitUser()}
	state, err := client.Status(ctx)
	if err != nil {
		found.Err = err.Error()
		if by := client.DescribePortHolder(); by != "" {
			found.Err, found.PortTaken = by, true
		}
		if s, known := unitState(ctx, monit.UnitName); known {
			found.Unit = s.Active
		}
		return found
	}
	for _, s := range state.Services {
		service := Service{Name: s.Name, State: s.State, Monitored: s.Monitored, PID: s.PID,
			Stopped: s.PID > 0 && status.ProcessStopped(s.PID)}
		if s.Monitored && s.State != "running" {
			service.Logs = JobLogs(dirs, s.Name)
		}
		found.Services = append(found.Services, service)
	}
	return found
}

// logsNamed limits the number of log files listed for a job.
const logsNamed = 3

// JobLogs returns the log files of the job whose monit file names the service, the newest first.
func JobLogs(dirs vcap.Dirs, service string) (logs []string) {
	names := regexp.MustCompile(`(?m)^\s*check\s+\w+\s+"?` + regexp.QuoteMeta(service) + `"?(\s|$)`)
	files, _ := filepath.Glob(dirs.MonitFiles()) // the pattern is well-formed
	changed := map[string]time.Time{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !names.Match(text) {
			continue
		}
		_, job, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".monitrc"), "_") // NNNN_JOB, or NNNN_JOB_LABEL
		for ; job != ""; job = job[:max(0, strings.LastIndex(job, "_"))] {
			found, _ := filepath.Glob(dirs.LogsOf(job))
			for _, log := range found {
				if info, err := bounded.Stat(&foreign, log); err == nil && info.Mode().IsRegular() {
					logs, changed[log] = append(logs, log), info.ModTime()
				}
			}
			if len(found) > 0 {
				break
			}
		}
	}
	slices.SortFunc(logs, func(a, b string) int { return changed[b].Compare(changed[a]) })
	return logs[:min(len(logs), logsNamed)]
}

// tasks counts the recorded tasks. The record is beside the settings.
func tasks(dirs vcap.Dirs) task.Counts {
	for _, place := range dirs.Places() {
		if _, err := os.Stat(place.TaskRecord()); err == nil {
			counts, _ := task.Count(place.TaskRecord()) // none if it cannot be read
			return counts
		}
	}
	return task.Counts{}
}

// foreign bounds reads of files and processes of jobs, which may block.
var foreign bounded.Group

// agents returns the processes that run the agent's file without a command word. It skips commands, and processes in
// containers.
func agents(dirs vcap.Dirs) (pids []int) {
	program := dirs.Agent()
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	entries, _ := os.ReadDir("/proc") // without it there is nothing to tell
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != program {
			continue
		}
		if within, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid")); err != nil || within != namespace {
			continue
		}
		line, err := bounded.ReadFile(&foreign, filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && runsAgent(strings.Split(string(line), "\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runsAgent reports whether the arguments run the agent (`agent run`, or only flags) and not a command.
func runsAgent(argv []string) bool {
	return len(argv) > 1 && (argv[1] == "run" || strings.HasPrefix(argv[1], "-"))
}
