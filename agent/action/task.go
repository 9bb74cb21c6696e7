package action

import (
	"context"
	"encoding/json"
	"fmt"

	"cambium/agent/task"
)

// Tasks looks up and cancels tasks, for get_task and cancel_task.
type Tasks interface {
	Outcome(id string) (task.Outcome, error)
	Cancel(id string) error
	Ended(id string) bool
	Wait(ctx context.Context, id string)
}

// TaskHandle is the answer that makes a caller poll for a task.
type TaskHandle struct {
	ID    string `json:"agent_task_id"`
	State string `json:"state"`
}

// RunningTask returns the handle of a running task.
func RunningTask(id string) TaskHandle { return TaskHandle{ID: id, State: "running"} }

func getTask(tasks Tasks) func(context.Context, string) (any, error) {
	return func(_ context.Context, id string) (any, error) {
		o, err := tasks.Outcome(id)
		switch {
		case err != nil:
			return nil, err
		case o.Running:
			return RunningTask(id), nil
		case o.Failed:
			return nil, TaskFailed{o.Method, id, o.Error}
		}
		return o.Value, nil
	}
}

// awaitTask lets the dispatcher delay the answer to get_task while the task runs. The Director and the CLI sleep for a
// second before they ask again, so an answer at the moment when the task ends saves up to a second.
func awaitTask(tasks Tasks) func([]json.RawMessage) (func() bool, func(context.Context)) {
	return func(arguments []json.RawMessage) (func() bool, func(context.Context)) {
		var id string
		if decode(arguments, 1, &id) != nil {
			return func() bool { return true }, func(context.Context) {}
		}
		return func() bool { return tasks.Ended(id) }, func(ctx context.Context) { tasks.Wait(ctx, id) }
	}
}

// TaskFailed is the error of a failed task. People and tools know its wording.
type TaskFailed struct{ Method, id, why string }

func (e TaskFailed) Error() string { return fmt.Sprintf("Task %s result: %s", e.id, e.why) }

func cancelTask(tasks Tasks) func(context.Context, string) (string, error) {
	return func(_ context.Context, id string) (string, error) { return "canceled", tasks.Cancel(id) }
}
