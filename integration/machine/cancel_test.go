//go:build machine

package machine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/director"
)

// cancelsDisks cancels each disk action that can wait while it does: for a device that does not
// come, or for a mount that is in use. It ends at once and says what it waited for, nothing has
// changed, and the next action runs. The machine has the persistent disk cid on its store.
func cancelsDisks(t *testing.T, i *lab.Instance, cid string) {
	t.Helper()
	marker := run(t, i, "sh", "-c", "date +%N | tee /var/vcap/store/marker")
	do(t, i, "{}", "add_persistent_disk", "disk-gone", "/dev/nowhere")
	canceled(t, i, "find disk", "mount_disk", "disk-gone")
	canceled(t, i, "find disk", "add_dynamic_disk", "dynamic-gone", map[string]any{"path": "/dev/nowhere"})
	do(t, i, "{}", "remove_persistent_disk", "disk-gone")

	run(t, i, "systemd-run", "--quiet", "--unit=hog", "--service-type=exec", "--working-directory=/var/vcap/store",
		"sleep", "1000")
	canceled(t, i, "busy", "unmount_disk", cid)
	if got := run(t, i, "cat", "/var/vcap/store/marker"); got != marker {
		t.Errorf("after a canceled unmount_disk the store has %q, want %q", got, marker)
	}
	do(t, i, `["`+cid+`"]`, "list_disk")

	do(t, i, `"stopped"`, "stop")
	run(t, i, "systemctl", "stop", "hog")
	do(t, i, `{"message":"Unmounted partition of `+cid+`"}`, "unmount_disk", cid)
	eventually.True(t, "a status that knows of the unmount and is not degraded by it", func() bool {
		d := agentStatus(t, i)
		return d.Unmounted == cid && d.State == status.Ready
	})
	do(t, i, "{}", "mount_disk", cid)
	if got := run(t, i, "cat", "/var/vcap/store/marker"); got != marker {
		t.Errorf("mounted again the store has %q, want %q", got, marker)
	}
}

func do(t *testing.T, i *lab.Instance, want, method string, arguments ...any) {
	t.Helper()
	if got, err := i.Agent.Do(t.Context(), method, arguments...); err != nil || string(got) != want {
		t.Fatalf("%s: got %s, %v; want %s", method, got, err, want)
	}
}

// canceled starts a task and cancels it until it was hit in the middle of its wait, which its
// end tells: one that had not begun says no more than that it was canceled.
func canceled(t *testing.T, i *lab.Instance, waited, method string, arguments ...any) {
	t.Helper()
	for range 20 {
		value, err := i.Agent.Call(t.Context(), method, arguments...)
		var handle struct {
			ID string `json:"agent_task_id"`
		}
		if err == nil {
			err = json.Unmarshal(value, &handle)
		}
		if err != nil || handle.ID == "" {
			t.Fatalf("%s: got %s, %v; want a task", method, value, err)
		}
		if got, err := i.Agent.Call(t.Context(), "get_task", handle.ID); err != nil ||
			!strings.Contains(string(got), `"running"`) {
			t.Fatalf("%s: got %s, %v; want it to wait", method, got, err)
		}
		begin := time.Now()
		if got, err := i.Agent.Call(t.Context(), "cancel_task", handle.ID); err != nil || string(got) != `"canceled"` {
			t.Fatalf("cancel_task of %s: got %s, %v", method, got, err)
		}
		for err = nil; err == nil; {
			if _, err = i.Agent.Call(t.Context(), "get_task", handle.ID); time.Since(begin) > 10*time.Second {
				t.Fatalf("%s goes on after it was canceled", method)
			}
		}
		var e *director.Exception
		if !errors.As(err, &e) || !strings.Contains(e.Message, "Task "+handle.ID+" result: ") ||
			!strings.Contains(e.Message, "task was canceled") {
			t.Fatalf("%s: got %v, want an exception that says it was canceled", method, err)
		}
		if strings.Contains(e.Message, waited) {
			t.Logf("%s: %s", method, e.Message)
			return
		}
	}
	t.Errorf("%s never said that it waited (%s)", method, waited)
}
