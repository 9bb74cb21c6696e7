package action

import "maps"

// Deps is what the actions of this file's table work with. cmd/agent fills it with concrete
// types; each interface is declared beside the action that needs it.
type Deps struct {
	Tasks          Tasks
	State          StateSource
	Disks          Disks
	UpdateSettings UpdateSettings
	SensitiveBlobs SensitiveBlobs
	// Removable are the directories below which remove_file may delete.
	Removable []string
	SSH       *SSH
	DNS       *DNS
	Neighbors Neighbors
	Power     Power
}

// Actions returns the rows that this package implements itself. The job, package, script and
// log actions are rows of their own table, joined with Merge.
func Actions(d Deps) Table {
	t := Table{
		"ping":        {Bind: None(ping), Lane: Immediate},
		"info":        {Bind: None(info), Lane: Immediate},
		"get_task":    {Bind: One(getTask(d.Tasks)), Lane: Immediate, Await: awaitTask(d.Tasks)},
		"cancel_task": {Bind: One(cancelTask(d.Tasks)), Lane: Immediate},
		"get_state":   {Bind: MaybeOne(d.State.state), Lane: Fast},

		"update_settings": {Bind: One(d.UpdateSettings.run), Mode: Async, Lane: Instance, Sensitive: true, Cancelable: true,
			Resume: resume(d.UpdateSettings.resume)},

		"upload_blob":              {Bind: One(uploadBlob(d.SensitiveBlobs)), Mode: Async, Lane: Overlap, Sensitive: true},
		"remove_file":              {Bind: One(removeFile(d.Removable)), Lane: Overlap},
		"ssh":                      {Bind: Two(d.SSH.run), Lane: Overlap},
		"sync_dns":                 {Bind: Three(d.DNS.sync), Lane: Overlap, ReplyTimeout: DNSReplyTimeout},
		"sync_dns_with_signed_url": {Bind: One(d.DNS.syncSigned), Lane: Overlap, ReplyTimeout: DNSReplyTimeout, Sensitive: true},
		"delete_arp_entries":       {Bind: One(deleteARPEntries(d.Neighbors)), Lane: Overlap},
		"shutdown":                 {Bind: None(shutdown(d.Power)), Lane: Overlap},
	}
	maps.Copy(t, diskRows(d.Disks))
	return t
}
