package vcap

import (
	"path/filepath"
	"slices"
	"strings"
)

// foreign is the directory, beside a file, for those of other agent ids.
const foreign = "foreign"

// OfAgentID are the files and directories that belong to one agent id: what a Director asked of this VM, what was made
// of it, and the keys and warnings of its bus. They are set aside in this order, with their companions: files whose
// names continue theirs after a dot. The settings name the agent id, so they come last: a start that finds them
// continues an interrupted move.
//
// Everything else belongs to the machine or to its disks, or is made again before it is read; below Data nothing is
// set aside, because the ephemeral disk is mounted only after the settings are known.
func (d Dirs) OfAgentID() []string {
	paths := []string{d.Spec(), d.Tasks(), d.Ready(), d.Boots(), d.HTTPSKey(), d.AgentState(),
		d.Instance(), d.MonitJobs(), d.MonitJobsWithdrawn(), d.MonitStopped(), d.StartRequested(),
		d.ManagedDiskSettings(), d.DiskRecordLock(), d.DiskRecord()}
	for _, p := range d.Places() {
		paths = append(paths, p.TaskRecord(), p.CertificateWarnings(), p.UpdateSettings(), p.DiskHints())
	}
	for _, p := range d.Places() {
		paths = append(paths, p.Settings())
	}
	return paths
}

// Aside is the directory for a path of another agent id. It is beside the path, because what is on a tmpfs must not get
// to the disk.
func Aside(path, agentID string) string {
	return filepath.Join(filepath.Dir(path), foreign, fileName(agentID))
}

// Foreign are patterns of the directories that Aside returns.
func (d Dirs) Foreign() (patterns []string) {
	for _, path := range d.OfAgentID() {
		patterns = append(patterns, filepath.Join(filepath.Dir(path), foreign, "*"))
	}
	slices.Sort(patterns)
	return slices.Compact(patterns)
}

// fileName makes a directory name of an agent id, which is any string.
func fileName(id string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, id)
	return clean[:min(len(clean), 128)]
}
