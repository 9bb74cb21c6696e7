// Package control lets one process ask another for what its lab can do: a lab that was started
// in the background is held by a process of its own, and every later command reaches it through
// a socket in the lab's directory.
package control

import (
	"encoding/json"
	"path/filepath"
	"sort"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/director"
	"cambium/integration/lab/release"
)

// State is a lab as others see it.
type State struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid"`
	Since    time.Time `json:"since"`
	Network  string    `json:"network_namespace"`
	Bus      string    `json:"bus"` // empty in a bare lab
	Machines []Machine `json:"machines"`
	Disks    []Disk    `json:"disks"` // of machines that were deleted
}

// Machine is one machine of a lab.
type Machine struct {
	Name      string    `json:"name"`
	Running   bool      `json:"running"`
	AgentID   string    `json:"agent_id,omitempty"`
	IP        string    `json:"ip"`
	Boots     int       `json:"boots"`
	Since     time.Time `json:"since"`
	Source    string    `json:"source"`
	Console   string    `json:"console"`
	Shell     []string  `json:"shell,omitempty"`
	Disks     []Disk    `json:"disks"`
	Published string    `json:"published,omitempty"`
}

// Disk is an attached disk; Path is the hint that a CPI would return.
type Disk struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Call is a request to an agent.
type Call struct {
	Machine   string            `json:"machine"`
	Method    string            `json:"method"`
	Arguments []json.RawMessage `json:"arguments"`
	Timeout   time.Duration     `json:"timeout"`
	NoFollow  bool              `json:"no_follow"` // return the task's handle
}

// Deploy is a manifest with the directory its paths are meant in.
type Deploy struct {
	Manifest release.Manifest `json:"manifest"`
	Base     string           `json:"base"`
}

// Line is one line of an answer that takes its time. The last has a Value or an Error.
type Line struct {
	Progress string          `json:"progress,omitempty"`
	Instance string          `json:"instance,omitempty"`
	Step     string          `json:"step,omitempty"`
	Seconds  float64         `json:"seconds,omitempty"`
	Event    *director.Event `json:"event,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Error    string          `json:"error,omitempty"`
	Agent    bool            `json:"agent,omitempty"` // the error is the agent's exception
	// Verdict is the agent's own on a boot that has failed.
	Verdict string `json:"verdict,omitempty"`
	Done    bool   `json:"done,omitempty"`
}

// socket is the path of a lab's socket.
func socket(dir, name string) string { return filepath.Join(dir, name, "control") }

func state(l *lab.Lab, s *Server) State {
	st := State{Name: l.Name(), PID: s.pid, Since: s.since, Network: l.Net.Name(), Machines: []Machine{}, Disks: []Disk{}}
	if l.Bus != nil {
		st.Bus = l.Bus.URL()
	}
	for id, image := range l.KeptDisks() {
		st.Disks = append(st.Disks, Disk{ID: id, Size: lab.ImageSize(image)})
	}
	sort.Slice(st.Disks, func(a, b int) bool { return st.Disks[a].ID < st.Disks[b].ID })
	for name, i := range l.Machines() {
		st.Machines = append(st.Machines, machineState(name, i, s.published(name)))
	}
	sort.Slice(st.Machines, func(a, b int) bool { return st.Machines[a].Name < st.Machines[b].Name })
	return st
}

func machineState(name string, i *lab.Instance, published string) Machine {
	m := Machine{Name: name, Running: i.Running(), AgentID: i.AgentID, IP: i.IP, Source: string(i.Source()), Console: i.Console(),
		Disks: []Disk{}, Published: published}
	m.Boots, m.Since = i.Boots()
	if m.Running {
		m.Shell, _ = i.Shell() // gone meanwhile: then there is no shell
	}
	for _, a := range i.Disks() {
		m.Disks = append(m.Disks, Disk{ID: a.Disk.ID, Path: a.Path, Size: lab.ImageSize(a.Disk.Image)})
	}
	sort.Slice(m.Disks, func(a, b int) bool { return m.Disks[a].ID < m.Disks[b].ID })
	return m
}
