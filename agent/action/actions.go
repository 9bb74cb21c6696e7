package action

import (
	"context"
	"maps"
	"time"

	"cambium/jobs/script"
)

// Deps holds the dependencies of the actions. cmd/agent fills it, and a test there fails if one is missing. Each
// interface is declared beside the action that needs it.
type Deps struct {
	Tasks          Tasks
	State          StateSource
	Disks          Disks
	UpdateSettings UpdateSettings
	SensitiveBlobs SensitiveBlobs
	// Removable lists the directories below which remove_file may delete.
	Removable []string
	SSH       *SSH
	DNS       *DNS
	Neighbors Neighbors
	Power     Power
	Instance  JobInstance
	Scripts   Scripts
	Compiler  Compiler
	Logs      Logs
	Uploads   Uploads
	Networks  Networks
	// NotifyShutdown tells the Health Monitor that the instance is stopped on purpose.
	NotifyShutdown func(ctx context.Context)
}

// startReplyTimeout is the time that `bosh start` waits for a reply.
const startReplyTimeout = 90 * time.Second

// Actions returns the table of all methods.
func Actions(d Deps) Table {
	t := Table{
		"ping":        {Bind: None(ping), Lane: Immediate},
		"info":        {Bind: None(info), Lane: Immediate},
		"get_task":    {Bind: One(getTask(d.Tasks)), Lane: Immediate, Await: awaitTask(d.Tasks)},
		"cancel_task": {Bind: One(cancelTask(d.Tasks)), Lane: Immediate},
		"get_state":   {Bind: MaybeOne(d.State.state), Lane: Fast},

		"update_settings": {
			Bind:       One(d.UpdateSettings.run),
			Mode:       Async,
			Lane:       Instance,
			Sensitive:  true,
			Cancelable: true,
			Resume:     resume(d.UpdateSettings.resume),
		},

		"upload_blob": {
			Bind:      One(uploadBlob(d.SensitiveBlobs)),
			Mode:      Async,
			Lane:      Transfer,
			Sensitive: true,
		},
		"remove_file": {Bind: One(removeFile(d.Removable)), Lane: Overlap},
		"ssh":         {Bind: Two(d.SSH.run), Lane: Overlap},
		"sync_dns":    {Bind: Three(d.DNS.sync), Lane: Overlap, ReplyTimeout: DNSReplyTimeout},
		"sync_dns_with_signed_url": {
			Bind:         One(d.DNS.syncSigned),
			Lane:         Overlap,
			ReplyTimeout: DNSReplyTimeout,
			Sensitive:    true,
		},
		"delete_arp_entries": {Bind: One(deleteARPEntries(d.Neighbors)), Lane: Overlap},
		"shutdown":           {Bind: None(shutdown(d.Power)), Lane: Overlap},

		"prepare": {Bind: One(prepare(d.Instance)), Mode: Async, Lane: Instance, Cancelable: true},
		"apply":   {Bind: One(apply(d.Instance, d.Networks)), Mode: Async, Lane: Instance, Cancelable: true},
		"start":   {Bind: None(start(d.Instance)), Lane: Instance, ReplyTimeout: startReplyTimeout},
		"stop":    {Bind: None(stop(d.Instance)), Mode: Async, Lane: Instance, Cancelable: true},
		"drain": {Bind: OneMaybeTwo(drain(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return 0, nil }},
		"run_script": {Bind: Two(runScript(d)), Mode: Async, Lane: Instance, Cancelable: true},
		"run_errand": {Bind: MaybeOne(runErrand(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return script.Outcome{ExitCode: canceledErrand}, nil }},

		"compile_package": {Bind: Five(compilePackage(d)), Mode: Async, Lane: Instance, Cancelable: true},
		"compile_package_with_signed_url": {Bind: One(compileSigned(d)), Mode: Async, Lane: Instance,
			Cancelable: true},

		"fetch_logs":                 {Bind: Two(fetchLogs(d)), Mode: Async, Lane: Transfer, Cancelable: true},
		"fetch_logs_with_signed_url": {Bind: One(fetchLogsSigned(d)), Mode: Async, Lane: Transfer, Cancelable: true},
		"bundle_logs": {Bind: One(bundleLogs(d.Logs)), Lane: Transfer, EndsWithCaller: true,
			ReplyTimeout: BundleReplyTimeout},
	}
	maps.Copy(t, diskRows(d.Disks))
	return t
}
