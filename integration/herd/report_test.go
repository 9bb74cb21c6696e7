//go:build soak

package herd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	figuresFile = "../../docs/results/herd.json"
	page        = "../../docs/results/herd.md"
	picture     = "../../docs/results/herd.svg"
)

// results holds the figures of the page; its parts were measured at different times.
type results struct {
	Herds   []figures
	Users   []usersRow
	Names   []broadcast
	NamesOn string
}

func load(t *testing.T) (r results) {
	t.Helper()
	data, err := os.ReadFile(figuresFile)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return r
}

// save writes the results, the page and the picture.
func save(t *testing.T, r results) {
	t.Helper()
	slices.SortFunc(r.Users, func(a, b usersRow) int { return a.Users - b.Users })
	slices.SortFunc(r.Herds, func(a, b figures) int { return a.Agents - b.Agents })
	for path, text := range map[string]string{page: r.page(), picture: r.picture(),
		figuresFile: string(must[[]byte](t)(json.MarshalIndent(r, "", "\t"))) + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// load1 returns the machine's load average over one minute, which shows other work beside the measurement.
func load1() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load unknown"
	}
	return "load " + strings.Fields(string(data))[0]
}

// of has the herds whose users are named in one way.
func (r results) of(by naming) results {
	r.Herds = slices.DeleteFunc(slices.Clone(r.Herds), func(f figures) bool { return f.Naming != by })
	return r
}

func (r results) page() string {
	var b strings.Builder
	b.WriteString(`# Thousands of agents

Written by ` + "`go test -tags soak -run Soak -timeout 2h ./integration/herd`" + `; each size is a part of its own
(` + "`-run TestSoakHerd/SAN/3000`" + `), and the page keeps the others.

Agents are the real bus client with heartbeats, each with a certificate of its own, in two processes; three NATS servers
with mutual TLS are processes of their own, all on one machine. The file of users is nats-sync's; in the second table each
certificate also has its name as a DNS name (SAN), and users have that name. Shown by the row: when it was measured, at
which commit, and the machine's load when it began: figures of a busy machine are upper bounds.

![Time and connections by the number of agents](herd.svg)

`)
	for _, by := range []naming{bySubject, bySAN} {
		if len(r.of(by).Herds) > 0 {
			fmt.Fprintf(&b, "Users by %s:\n\n", by)
			r.of(by).table(&b)
		}
	}
	if len(r.Herds) > 0 {
		fmt.Fprintf(&b, "Machine: %s.\n\n", r.Herds[0].Machine)
	}
	b.WriteString(`- **cold start**: all agents wait for servers; from the start of these to the last agent's answer.
- **server dies**: one of three is killed, the others serve its agents.
- **connects**: the most attempts within one second, and what jitter allows.
- **new agent**: refused by the servers, then written into the file, which is reloaded at once; from there to its first
  answer. **reload**: how long a server takes for that file.
- **new certificates**: ` + "`update_settings`" + ` to all, 32 at a time.
- **heartbeat gap**: the longest between two of one agent; a Health Monitor alerts at 60 s.

`)
	b.WriteString("## What a file of users costs\n\nProcessor time of one server, with 80 agents whatever the number of users; more connections than\n" +
		"agents are log-ins that took longer than two seconds.\n\n" +
		"| users in the file | file | a connection of a known agent | of an unknown one | connections of 80 known ones | measured |\n" +
		"|---|---|---|---|---|---|\n")
	for _, u := range r.Users {
		fmt.Fprintf(&b, "| %d | %d KiB | %.1f ms | %.1f ms | %d | %s, %s, %s |\n", u.Users, u.Bytes>>10, u.Login*1000,
			u.Refusal*1000, u.Logins,
			u.When, u.Commit, u.Load)
	}
	b.WriteString("\n")
	if len(r.Names) > 0 {
		fmt.Fprintf(&b, "## DNS records for %d agents\n\n`sync_dns` to all at once, blobstore over TLS (%s).\n\n",
			zoneAgents, r.NamesOn)
		b.WriteString("| broadcast | records | document | downloads | sent | connections at a time | until all have it |\n|---|---|---|---|---|---|---|\n")
		for _, n := range r.Names {
			fmt.Fprintf(&b, "| %s | %d | %d KiB | %d | %d MiB | %d | %.1f s |\n", n.What, n.Records, n.Bytes>>10, n.Fetches,
				n.Sent>>20,
				n.Peak, n.Seconds)
		}
		b.WriteString("\n")
	}
	b.WriteString(paper)
	return b.String()
}

func (r results) table(b *strings.Builder) {
	rows := []struct {
		name string
		cell func(f figures) string
	}{
		{"measured", func(f figures) string { return f.When + ", " + f.Commit + ", " + f.Load }},
		{"cold start", func(f figures) string { return fmt.Sprintf("%.1f s", f.ColdStart) }},
		{"connects (allowed)", func(f figures) string { return fmt.Sprintf("%.0f/s (%.0f)", f.ColdPeak, f.ColdAllowed) }},
		{"server's processor time for a log-in", func(f figures) string { return fmt.Sprintf("%.1f ms", f.ServerPerConnect*1000) }},
		{"server dies", func(f figures) string { return fmt.Sprintf("%.1f s, %d agents", f.Death, f.Lost) }},
		{"connects (allowed)", func(f figures) string { return fmt.Sprintf("%.0f/s (%.0f)", f.DeathPeak, f.DeathAllowed) }},
		{"new agent: median, longest", func(f figures) string {
			return fmt.Sprintf("%.1f s, %.1f s of %d", f.JoinMedian, f.JoinLongest, f.Joined)
		}},
		{"file of users; reload (processor time of all three)", func(f figures) string {
			work := "not measured"
			if f.ReloadWork > 0 {
				work = fmt.Sprintf("%.1f s", f.ReloadWork)
			}
			return fmt.Sprintf("%d KiB; %.1f s (%s)", f.UsersFile>>10, f.ReloadTime, work)
		}},
		{"new certificates", func(f figures) string { return fmt.Sprintf("%.1f s", f.Rotation) }},
		{"memory: an agent's client, a server's connection", func(f figures) string {
			return fmt.Sprintf("%d KiB, %d KiB", f.AgentMemory>>10, f.ConnectionMemory>>10)
		}},
		{"heartbeat gap", func(f figures) string { return fmt.Sprintf("%.0f s", f.HeartbeatGap) }},
		{"servers that fell over; slow consumers", func(f figures) string { return fmt.Sprintf("0; %d", f.SlowConsumers) }},
	}
	b.WriteString("| agents |")
	for _, f := range r.Herds {
		fmt.Fprintf(b, " %d |", f.Agents)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Herds)) + "\n")
	for _, row := range rows {
		b.WriteString("| " + row.name + " |")
		for _, f := range r.Herds {
			b.WriteString(" " + row.cell(f) + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}
