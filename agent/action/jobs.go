package action

import (
	"context"
	"time"

	"cambium/jobs/script"
)

// JobDeps is what the job, package, script and log actions work with.
type JobDeps struct {
	Instance JobInstance
	Scripts  Scripts
	Compiler Compiler
	Logs     Logs
	Uploads  Uploads
	// Networks are the networks of the settings in force.
	Networks Networks
	// SayShutdown tells the Health Monitor that the instance goes down on purpose.
	SayShutdown func(ctx context.Context)
}

// startReplyTimeout is how long `bosh start` waits.
const startReplyTimeout = 90 * time.Second

// JobRows returns the rows of the job, package, script and log actions.
func JobRows(d JobDeps) Table {
	return Table{
		"prepare": {Bind: One(prepare(d.Instance)), Mode: Async, Lane: Instance, Cancelable: true},
		"apply":   {Bind: One(apply(d.Instance, d.Networks)), Mode: Async, Lane: Instance, Cancelable: true},
		"start":   {Bind: None(start(d.Instance)), Lane: Instance, ReplyTimeout: startReplyTimeout},
		"stop":    {Bind: None(stop(d.Instance)), Mode: Async, Lane: Instance, Cancelable: true},
		"drain": {Bind: OneMaybeTwo(drain(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return 0, nil }},
		"run_script": {Bind: Two(runScript(d)), Mode: Async, Lane: Instance, Cancelable: true},
		"run_errand": {Bind: MaybeOne(runErrand(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return script.Outcome{ExitCode: canceledErrand}, nil }},

		"compile_package":                 {Bind: Five(compilePackage(d)), Mode: Async, Lane: Instance, Cancelable: true},
		"compile_package_with_signed_url": {Bind: One(compileSigned(d)), Mode: Async, Lane: Instance, Cancelable: true},

		"fetch_logs":                 {Bind: Two(fetchLogs(d)), Mode: Async, Lane: Overlap, Cancelable: true},
		"fetch_logs_with_signed_url": {Bind: One(fetchLogsSigned(d)), Mode: Async, Lane: Overlap, Cancelable: true},
		"bundle_logs":                {Bind: One(bundleLogs(d.Logs)), Lane: Overlap, EndsWithCaller: true},
	}
}
