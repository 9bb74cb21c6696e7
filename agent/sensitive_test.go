package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/mbus"
)

// The error of a request whose arguments may hold secrets goes to the caller, not to the log and not to the audit: of a
// call, of a task, of one that was resumed, and when the task is asked for.
func TestErrorsOfSensitiveRequestsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.DebugLevel)
	path := filepath.Join(t.TempDir(), "tasks")
	before := must[*task.Tasks](t)(task.Open(t.Context(), task.Options{Path: path, Log: quiet()}))
	resumed := before.Begin("secretive", false)
	resumed.Persist()
	tasks := must[*task.Tasks](t)(task.Open(t.Context(), task.Options{Path: path, Log: quiet()}))
	fail := func(context.Context) (string, error) { return "", errors.New("cannot use hunter2") }
	d := NewDispatcher(t.Context(), logrus.NewEntry(log))
	d.OpenGate(action.Table{
		"secretive": {Mode: action.Async, Lane: action.Instance, Sensitive: true, Bind: action.None(fail),
			Resume: func(ctx context.Context, _ json.RawMessage) (any, error) { return fail(ctx) }},
		"private":  {Lane: action.Overlap, Sensitive: true, Bind: action.None(fail)},
		"get_task": action.Actions(action.Deps{Tasks: tasks})["get_task"],
	}, tasks)
	var audit strings.Builder
	ask := func(method string, arguments ...string) string {
		answered := make(chan mbus.Reply, 1)
		d.Handle(t.Context(), mbus.Request{Method: method, Protocol: 3, Arguments: rawArguments(arguments...)},
			func(r mbus.Reply) { answered <- r })
		reply := <-answered
		audit.WriteString(mbus.NATSEvent(method, "r", reply, "10.0.0.1:4222", "vm").String() + "\n")
		return string(reply.Encode(0))
	}
	ask("secretive")
	d.Wait()
	replies := map[string]string{"private": ask("private"), "get_task": ask("get_task", `"`+resumed.ID+`"`)}
	for asked, reply := range replies {
		if !strings.Contains(reply, "cannot use hunter2") {
			t.Errorf("the caller of %s gets %s", asked, reply)
		}
	}
	d.Wait()
	if got := out.String(); strings.Contains(got, "hunter2") || strings.Count(got, "task failed") != 2 {
		t.Errorf("want two failed tasks without their errors in the log, got:\n%s", got)
	}
	if got := audit.String(); strings.Contains(got, "hunter2") || strings.Count(got, "cs1=not logged") != 2 {
		t.Errorf("want two failures without their errors in the audit, got:\n%s", got)
	}
}
