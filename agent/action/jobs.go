package action

import (
	"context"

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

// JobRows returns the rows of the job, package, script and log actions.
func JobRows(d JobDeps) Table {
	return Table{
		"prepare": {Bind: One(prepare(d.Instance)), Mode: Async, Lane: Instance},
		"apply":   {Bind: One(apply(d.Instance, d.Networks)), Mode: Async, Lane: Instance},
		"start":   {Bind: None(start(d.Instance)), Lane: Instance},
		"stop":    {Bind: None(stop(d.Instance)), Mode: Async, Lane: Instance},
		"drain": {Bind: OneMaybeTwo(drain(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return 0, nil }},
		"run_script": {Bind: Two(runScript(d)), Mode: Async, Lane: Instance},
		"run_errand": {Bind: MaybeOne(runErrand(d)), Mode: Async, Lane: Instance, Cancelable: true,
			Canceled: func(context.Context) (any, error) { return script.Outcome{ExitCode: canceledErrand}, nil }},

		"compile_package":                 {Bind: Five(compilePackage(d)), Mode: Async, Lane: Instance},
		"compile_package_with_signed_url": {Bind: One(compileSigned(d)), Mode: Async, Lane: Instance},

		"fetch_logs":                 {Bind: Two(fetchLogs(d)), Mode: Async, Lane: Overlap},
		"fetch_logs_with_signed_url": {Bind: One(fetchLogsSigned(d)), Mode: Async, Lane: Overlap},
		"bundle_logs":                {Bind: One(bundleLogs(d.Logs)), Lane: Overlap},
	}
}
