package settings

import (
	"cmp"
	"time"
)

// The switches of what this agent does beyond cloudfoundry/bosh-agent. Each can be set by the stemcell, in
// agent.json, and by the deployment, below env.bosh.agent; the deployment decides before the stemcell.

// EarlyPings reports whether pings are answered before the agent is ready.
func (e Effective) EarlyPings(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.EarlyPings, stemcell)
}

// Firewall reports whether rules keep jobs away from monit and the bus.
func (e Effective) Firewall(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.Firewall, stemcell)
}

// ScriptsOnBoot reports whether jobs are started with their scripts after a boot of the machine.
func (e Effective) ScriptsOnBoot(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.ScriptsOnBoot, stemcell)
}

// MetadataAccess returns who reaches metadata services: "all" or "root". Another word of the deployment decides nothing.
func (e Effective) MetadataAccess(stemcell string) string {
	if deployment := e.Settings.Env.Bosh.Agent.MetadataAccess; deployment == "all" || deployment == "root" {
		return deployment
	}
	return stemcell
}

// MetadataUsers are the users who reach metadata services besides root, by name or number.
func (e Effective) MetadataUsers(stemcell []string) []string {
	if deployment := e.Settings.Env.Bosh.Agent.MetadataUsers; deployment != nil {
		return deployment
	}
	return stemcell
}

// TaskAnswerHold returns the time for which the answer about a running task is held, at most limit.
func (e Effective) TaskAnswerHold(stemcell, limit time.Duration) time.Duration {
	if seconds := e.Settings.Env.Bosh.Agent.TaskAnswerHoldSeconds; seconds != nil {
		return min(time.Duration(min(*seconds, 60))*time.Second, limit)
	}
	return stemcell
}

// ForeignPersistentDisk returns the policy for a persistent disk whose content is not ours: "refuse" or "format".
func (e Effective) ForeignPersistentDisk(stemcell string) string {
	env := e.Settings.Env
	return cmp.Or(env.Bosh.Agent.PersistentDiskForeign, env.PersistentDiskForeign, stemcell)
}

func decide(deployment *bool, stemcell bool) bool {
	if deployment != nil {
		return *deployment
	}
	return stemcell
}

// BlankDisks returns the content that a new persistent disk reads as: "zeros" or "noise".
func (e Effective) BlankDisks(stemcell string) string {
	return cmp.Or(e.Settings.Env.PersistentDiskBlank, stemcell)
}
