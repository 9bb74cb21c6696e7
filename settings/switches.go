package settings

import (
	"cmp"
	"time"
)

// Each addition to cloudfoundry/bosh-agent can be configured in agent.json, by the stemcell, and below env.bosh.agent,
// by the deployment. The deployment takes precedence.

// EarlyPings reports whether the agent answers pings before it is ready.
func (e Effective) EarlyPings(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.EarlyPings, stemcell)
}

// Firewall reports whether the agent keeps jobs away from monit and the bus.
func (e Effective) Firewall(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.Firewall, stemcell)
}

// ScriptsOnBoot reports whether jobs started after a reboot run their pre-start and post-start scripts.
func (e Effective) ScriptsOnBoot(stemcell bool) bool {
	return decide(e.Settings.Env.Bosh.Agent.ScriptsOnBoot, stemcell)
}

// MetadataAccess returns who may connect to metadata services, "all" or "root". An unknown value of the deployment is
// ignored.
func (e Effective) MetadataAccess(stemcell string) string {
	if deployment := e.Settings.Env.Bosh.Agent.MetadataAccess; deployment == "all" || deployment == "root" {
		return deployment
	}
	return stemcell
}

// MetadataUsers returns the users, by name or uid, who may connect to metadata services besides root.
func (e Effective) MetadataUsers(stemcell []string) []string {
	if deployment := e.Settings.Env.Bosh.Agent.MetadataUsers; deployment != nil {
		return deployment
	}
	return stemcell
}

// TaskAnswerHold returns the time for which a reply about a running task is delayed, at most limit.
func (e Effective) TaskAnswerHold(stemcell, limit time.Duration) time.Duration {
	if seconds := e.Settings.Env.Bosh.Agent.TaskAnswerHoldSeconds; seconds != nil {
		return min(time.Duration(min(*seconds, 60))*time.Second, limit)
	}
	return stemcell
}

// ForeignPersistentDisk returns the policy for a persistent disk with content that BOSH did not write: "refuse" or
// "format".
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

// BlankDisks returns the content of a new persistent disk when read: "zeros" or "noise".
func (e Effective) BlankDisks(stemcell string) string {
	return cmp.Or(e.Settings.Env.PersistentDiskBlank, stemcell)
}
