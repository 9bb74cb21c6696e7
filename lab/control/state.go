// Package control lets commands use a lab that another process holds: a lab that was started in the background is
// held by a process of its own, and every later command reaches it through a socket in the lab's directory.
package control

import (
	"encoding/json"
	"path/filepath"
	"time"

	"cambium/lab/director"
	"cambium/lab/release"
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

// DiskChange asks for a disk to be attached, detached, resized or deleted.
type DiskChange struct {
	Machine string `json:"machine"`
	Verb    string `json:"verb"`
	ID      string `json:"id"`
	Size    int64  `json:"size"`
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
