// Package control lets commands use a lab that another process holds. A lab that was started in the background is held
// by its own process, and later commands reach it through a socket in the lab's directory.
package control

import (
	"encoding/json"
	"path/filepath"
	"time"

	"cambium/lab/director"
	"cambium/lab/release"
)

// State describes a lab to clients.
type State struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid"`
	Since    time.Time `json:"since"`
	Network  string    `json:"network_namespace"`
	Bus      string    `json:"bus"` // empty if the lab is bare
	Machines []Machine `json:"machines"`
	Disks    []Disk    `json:"disks"` // disks of deleted machines
}

// Machine describes a machine of a lab.
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

// Disk describes a disk. Path is the hint that a CPI would return.
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

// Deploy is a manifest and the directory to which its paths are relative.
type Deploy struct {
	Manifest release.Manifest `json:"manifest"`
	Base     string           `json:"base"`
}

// DiskChange is a request to attach, detach, resize or delete a disk.
type DiskChange struct {
	Machine string `json:"machine"`
	Verb    string `json:"verb"`
	ID      string `json:"id"`
	Size    int64  `json:"size"`
}

// Line is a line of an answer that takes time. The last line has a Value or an Error.
type Line struct {
	Progress string          `json:"progress,omitempty"`
	Instance string          `json:"instance,omitempty"`
	Step     string          `json:"step,omitempty"`
	Seconds  float64         `json:"seconds,omitempty"`
	Event    *director.Event `json:"event,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Error    string          `json:"error,omitempty"`
	Agent    bool            `json:"agent,omitempty"` // the error is an exception of the agent
	// Verdict is the agent's verdict on a failed boot.
	Verdict string `json:"verdict,omitempty"`
	Done    bool   `json:"done,omitempty"`
}

// socket returns the path of a lab's socket.
func socket(dir, name string) string { return filepath.Join(dir, name, "control") }
