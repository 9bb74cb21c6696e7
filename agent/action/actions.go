package action

// Deps is what the actions of this file's table work with. cmd/agent fills it with concrete
// types; each interface is declared beside the action that needs it.
type Deps struct {
	Tasks Tasks
}

// Actions returns the rows that this package implements itself. The job, package, script and
// log actions are rows of their own table, joined with Merge.
func Actions(d Deps) Table {
	return Table{
		"ping": {Bind: None(ping), Lane: Immediate},
		"info": {Bind: None(info), Lane: Immediate},

		"get_task":    {Bind: One(getTask(d.Tasks)), Lane: Immediate},
		"cancel_task": {Bind: One(cancelTask(d.Tasks)), Lane: Immediate},
	}
}
