// Package metrics implements `agent metrics`, which prints the state of the machine in Prometheus' text format, for
// node_exporter's textfile collector or others. It contacts no other machine.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/atomicfile"
	"cambium/internal/status"
	"cambium/internal/vcap"
)

// Run runs `agent metrics`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("metrics", cli.Help{Arguments: "[--textfile FILE]",
		Purpose: `Prints gauges in Prometheus' text format: state, boot steps, bus, long tasks, file systems, job
processes and the expiry of certificates. With --textfile it replaces FILE, for node_exporter's
--collector.textfile.directory. What only root may read is left out for others. Exit codes: 0 printed, 1 not written, 2 usage.`,
		Examples: []string{
			"agent metrics",
			"agent metrics --textfile /var/lib/prometheus/node-exporter/cambium.prom",
		}}, stdout, stderr)
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	path := flags.String("file", vcap.RunDir.Status(), "status `FILE` to read")
	target := flags.String("textfile", "", "replace `FILE` instead of printing")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	var out bytes.Buffer
	write(&out, observe.Local(ctx, observe.Options{Dirs: vcap.New(*base), Status: *path}))
	var err error
	if *target == "" {
		_, err = stdout.Write(out.Bytes())
	} else {
		err = atomicfile.Write(*target, out.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(stderr, "agent metrics:", err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// states lists the states that each have a series, whichever of them the agent is in.
var states = []status.State{status.Starting, status.Ready, status.Degraded, status.Failed}

// write prints the metrics of a machine.
func write(w io.Writer, m observe.Facts) {
	p := printer{w}
	d := m.Agent.Status
	if d == nil {
		d = &status.Document{}
	}
	p.family("cambium_agent_running", "1 if the agent's process is running.")
	p.sample("cambium_agent_running", truth(m.Agent.Running))
	p.family("cambium_agent_restarts", "How often systemd has restarted the agent since it was started on purpose.")
	p.sample("cambium_agent_restarts", float64(m.Agent.Restarts))
	p.family("cambium_agent_info", "1; the labels are the agent's version and id.")
	p.sample("cambium_agent_info", 1, "version", d.Agent, "agent_id", d.AgentID)
	p.family("cambium_agent_state", "1 for the state that the agent is in.")
	for _, s := range states {
		p.sample("cambium_agent_state", truth(m.Agent.Running && d.State == s), "state", string(s))
	}
	boot(p, *d)
	p.family("cambium_filesystem_free_bytes", "Bytes that are free for users; root may have more.")
	for _, f := range m.FileSystems {
		p.sample("cambium_filesystem_free_bytes", float64(f.Free), "path", f.Path)
	}
	p.family("cambium_filesystem_size_bytes", "Size of the file system.")
	for _, f := range m.FileSystems {
		p.sample("cambium_filesystem_size_bytes", float64(f.Size), "path", f.Path)
	}
	p.family("cambium_filesystem_free_inodes", "Inodes that are free, of file systems with a fixed number.")
	for _, f := range m.FileSystems {
		if f.Inodes > 0 {
			p.sample("cambium_filesystem_free_inodes", float64(f.FreeInodes), "path", f.Path)
		}
	}
	p.family("cambium_filesystem_smaller_than_disk", "1 for a file system that does not use its whole disk.")
	for _, dir := range d.SmallerThanDisk() {
		p.sample("cambium_filesystem_smaller_than_disk", 1, "path", dir)
	}
	if m.Superuser {
		restricted(p, m)
	}
}

// restricted prints the metrics that only root can observe.
func restricted(p printer, m observe.Facts) {
	p.family("cambium_tasks", "Tasks that the agent remembers.")
	p.sample("cambium_tasks", float64(m.Tasks.Running), "state", "running")
	p.sample("cambium_tasks", float64(m.Tasks.Succeeded), "state", "succeeded")
	p.sample("cambium_tasks", float64(m.Tasks.Failed), "state", "failed")
	p.family("cambium_persistent_disk_mounted", "1 if the recorded persistent disk is mounted.")
	if m.Disk.CID != "" {
		p.sample("cambium_persistent_disk_mounted", truth(m.Disk.Mounted != "" && !m.Disk.Gone), "cid", m.Disk.CID)
	}
	p.family("cambium_supervisor_up", "1 if the supervisor answers.")
	if m.Supervisor.Expected {
		p.sample("cambium_supervisor_up", truth(m.Supervisor.Err == ""))
	}
	p.family("cambium_job_process_running", "1 if a supervised process is running.")
	for _, s := range m.Supervisor.Services {
		p.sample("cambium_job_process_running", truth(s.State == "running"), "name", s.Name, "monitored",
			fmt.Sprint(s.Monitored))
	}
	p.family("cambium_certificate_expiry_timestamp_seconds", "When a certificate expires.")
	for _, c := range m.Identity.Certificates {
		p.sample("cambium_certificate_expiry_timestamp_seconds", float64(c.NotAfter.Unix()), "role", c.Role, "name",
			c.Name)
	}
}

// boot prints the metrics of the status document: boot, bus and long operations.
func boot(p printer, d status.Document) {
	p.family("cambium_boot_ready_seconds", "Time from the start of the agent until it was ready.")
	if d.ReadyNS > 0 {
		p.sample("cambium_boot_ready_seconds", time.Duration(d.ReadyNS).Seconds())
	}
	p.family("cambium_boot_step_seconds", "How long a boot step took.")
	for _, s := range d.Steps {
		if s.End > 0 {
			p.sample("cambium_boot_step_seconds", s.Took().Seconds(), "step", s.Name, "outcome", string(s.Outcome))
		}
	}
	p.family("cambium_boot_tries", "How often this process has tried the boot.")
	p.sample("cambium_boot_tries", float64(max(d.Try, 1)))
	p.family("cambium_boot_failed", "1 from the first failed try until one succeeds.")
	p.sample("cambium_boot_failed", truth(d.Verdict != ""))
	p.family("cambium_boot_mark_seconds",
		"Time from the start of the agent until the event in the label first happened.")
	for _, mark := range d.Marks {
		p.sample("cambium_boot_mark_seconds", time.Duration(mark.At).Seconds(), "mark", mark.Name)
	}
	p.family("cambium_bus_connected", "1 if the Director can reach the agent.")
	if d.Bus != nil {
		p.sample("cambium_bus_connected", truth(d.Bus.Reachable()))
	}
	p.family("cambium_task_progress_bytes", "Progress of a long task.")
	for name, g := range d.Progress {
		p.sample("cambium_task_progress_bytes", float64(g.Done), "task", name)
	}
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

type printer struct{ w io.Writer }

// family prints the header of a metric. All are gauges, because node_exporter drops a file with a type that Prometheus'
// text format does not have, such as OpenMetrics' info.
func (p printer) family(name, help string) {
	fmt.Fprintf(p.w, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample prints one value. labels alternates names and values.
func (p printer) sample(name string, v float64, labels ...string) {
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, fmt.Sprintf(`%s="%s"`, labels[i], escape.Replace(labels[i+1])))
	}
	text := ""
	if len(pairs) > 0 {
		text = "{" + strings.Join(pairs, ",") + "}"
	}
	fmt.Fprintf(p.w, "%s%s %g\n", name, text, v)
}
