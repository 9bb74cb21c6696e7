package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"cambium/lab/control"
	"cambium/lab/director"
)

// board holds the content of the screen: the last heartbeat of each agent and the last alerts.
type board struct {
	names  map[string]string // names of the machines, by agent id
	beats  map[string]director.Event
	alerts []director.Event
}

func watch(ctx context.Context, c *call) error {
	var once bool
	var t target
	c.flags.BoolVar(&once, "once", false, "show what is known and exit")
	c.flags.StringVar(&t.url, "url", "", "the NATS server of agents outside of labs: nats://host:port")
	t.flags(c)
	if err := c.parse(0, 1); err != nil {
		return err
	}
	if !t.given() && len(c.args) > 0 {
		if done, err := c.watchVM(ctx, c.args[0], once); done || err != nil {
			return err
		}
	}
	b := board{names: map[string]string{}, beats: map[string]director.Event{}}
	events, err := c.events(ctx, t, &b, once)
	if err != nil {
		return err
	}
	only, err := c.watched(t, b)
	if err != nil {
		return err
	}
	f, ok := c.stdout.(*os.File)
	live := ok && isTerminal(f) && !c.json && !once
	var redraw <-chan time.Time
	if live {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		redraw = ticker.C
	}
	lines := make(chan control.Line)
	ended := make(chan error, 1)
	go func() {
		ended <- events(func(l control.Line) {
			select {
			case lines <- l:
			case <-ctx.Done():
			}
		})
	}()
	for {
		select {
		case l := <-lines:
			if l.Event == nil || only != "" && l.Event.Agent != only {
				continue
			}
			if c.json {
				if err := json.NewEncoder(c.stdout).Encode(l.Event); err != nil {
					return err
				}
				continue
			}
			if !live && !once {
				_, _ = fmt.Fprintln(c.stdout, b.line(*l.Event))
			}
			b.add(*l.Event)
			if live {
				b.draw(c.stdout, true)
			}
		case <-redraw:
			b.draw(c.stdout, true)
		case err := <-ended:
			if once && !c.json {
				b.draw(c.stdout, false)
			}
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
	}
}

// watched returns the agent id of the only machine to watch, or "" for all.
func (c *call) watched(t target, b board) (string, error) {
	if len(c.args) == 0 {
		return "", nil
	}
	if t.given() {
		return "", usagef("MACHINE cannot be combined with --url or --settings")
	}
	for agent, name := range b.names {
		if name == c.args[0] {
			return agent, nil
		}
	}
	return "", fmt.Errorf("neither the lab nor a CPI has a machine %s: run 'lab ls'", c.args[0])
}

// events returns a function that passes events to the board. They come from the lab's supervisor, which also knows the
// names of machines and earlier events, or from a NATS server.
func (c *call) events(ctx context.Context, t target, b *board, once bool) (func(func(control.Line)) error, error) {
	if t.given() {
		if once {
			return nil, usagef("--once needs a lab: a NATS server does not keep earlier events")
		}
		m, err := t.monitor()
		if err != nil {
			return nil, err
		}
		return func(each func(control.Line)) error {
			defer m.Close()
			events, stop := m.Listen()
			defer stop()
			for {
				select {
				case e := <-events:
					each(control.Line{Event: &e})
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}, nil
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	s, err := client.State(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range s.Machines {
		b.names[m.AgentID] = m.Name
	}
	return func(each func(control.Line)) error { return client.Events(ctx, !once, each) }, nil
}

func (b *board) add(e director.Event) {
	if e.Kind == "heartbeat" {
		b.beats[e.Agent] = e
		return
	}
	if b.alerts = append(b.alerts, e); len(b.alerts) > 15 {
		b.alerts = b.alerts[1:]
	}
}

func (b *board) name(agent string) string {
	if name, ok := b.names[agent]; ok {
		return name
	}
	return agent
}

// line formats an event as one line.
func (b *board) line(e director.Event) string {
	text := ""
	switch e.Kind {
	case "heartbeat":
		text = heartbeat(e)
	case "alert":
		var a director.Alert
		_ = json.Unmarshal(e.Body, &a)
		text = a.Title + ": " + a.Summary
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", e.Time.Format("15:04:05.000"), b.name(e.Agent), e.Kind, text))
}

func heartbeat(e director.Event) string {
	var h struct {
		director.Heartbeat
		Vitals struct {
			Load []string `json:"load"`
			CPU  struct {
				User string `json:"user"`
			} `json:"cpu"`
			Mem struct {
				Percent string `json:"percent"`
			} `json:"mem"`
			Disk map[string]struct {
				Percent string `json:"percent"`
			} `json:"disk"`
		} `json:"vitals"`
	}
	if json.Unmarshal(e.Body, &h) != nil {
		return "unreadable"
	}
	job, processes := "-", "-"
	if h.Job != nil {
		job = *h.Job
	}
	if h.Processes != nil {
		processes = fmt.Sprint(*h.Processes)
	}
	disks := []string{}
	for name, d := range h.Vitals.Disk {
		disks = append(disks, name+" "+d.Percent+"%")
	}
	sort.Strings(disks)
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s%%\t%s", h.JobState, job, processes, strings.Join(h.Vitals.Load, " "),
		h.Vitals.Mem.Percent, strings.Join(disks, ", "))
}

func (b *board) draw(w io.Writer, clear bool) {
	if clear {
		_, _ = fmt.Fprint(w, "\x1b[H\x1b[2J")
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "MACHINE\tBEAT\tSTATE\tJOB\tPROCESSES\tLOAD\tMEMORY\tDISKS")
	agents := []string{}
	for agent := range b.beats {
		agents = append(agents, agent)
	}
	sort.Slice(agents, func(i, j int) bool { return b.name(agents[i]) < b.name(agents[j]) })
	for _, agent := range agents {
		age := time.Since(b.beats[agent].Time)
		text := age.Round(time.Second).String() + " ago"
		if age > director.MissedAfter {
			text = "MISSED, " + text
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", b.name(agent), text, heartbeat(b.beats[agent]))
	}
	_ = table.Flush()
	if len(b.alerts) > 0 {
		_, _ = fmt.Fprintln(w)
	}
	for _, e := range b.alerts {
		_, _ = fmt.Fprintln(w, b.line(e))
	}
}
