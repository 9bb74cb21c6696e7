package vcap

import (
	"path/filepath"
	"strings"
)

// foreign is the name of the directories for files of other agent ids.
const foreign = "foreign"

// OfAgentID returns the paths that belong to one agent id: what a Director requested of this VM and what resulted from
// it, and the keys and warnings of its bus. They are set aside in this order, each with the files whose names continue
// its name after a dot. The settings contain the agent id, so they come last: if a start finds them, it continues an
// interrupted move.
//
// Everything else belongs to the machine or its disks, or is written again before it is read. Nothing below Data is set
// aside, because the ephemeral disk is mounted only after the settings are known.
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

// ForeignPath returns the directory to which a path of another agent id is moved. It is beside the path, because files
// on a tmpfs must not be moved to the disk.
func ForeignPath(path, agentID string) string {
	return filepath.Join(filepath.Dir(path), foreign, fileName(agentID))
}

// fileName converts an agent id, which is any string, to a file name.
func fileName(id string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, id)
	return clean[:min(len(clean), 128)]
}
