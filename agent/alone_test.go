package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"cambium/agent/action"
	"cambium/jobs"
	"cambium/mbus"
)

// RunAlone makes way for requests of its lane, which wait for its end, and for no other request.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var order []string
		mark := func(text string) func(context.Context) (any, error) {
			return func(context.Context) (any, error) { order = append(order, text); return nil, nil }
		}
		d.OpenGate(action.Table{"start": {Bind: action.None(mark("start")), Lane: action.Instance},
			"get_state": {Bind: action.None(mark("get_state")), Lane: action.Fast}}, memory(t))
		begun, ended := make(chan struct{}), make(chan error, 1)
		go d.RunAlone(t.Context(), func(ctx context.Context) {
			close(begun)
			<-ctx.Done()
			order = append(order, "alone ended")
			ended <- context.Cause(ctx)
		})
		<-begun
		request := func(method string) {
			d.Handle(t.Context(), mbus.Request{Method: method, ReplyTo: "director.x.1", KeepsWaiting: true}, func(mbus.Reply) {})
			synctest.Wait()
		}
		request("get_state")
		request("start")
		if err := <-ended; !errors.Is(err, jobs.ErrRequest) {
			t.Errorf("got %v", err)
		}
		d.Wait()
		if want := []string{"get_state", "alone ended", "start"}; len(order) != 3 || order[0] != want[0] ||
			order[1] != want[1] || order[2] != want[2] {
			t.Errorf("got %q, want %q", order, want)
		}
		// A request that has ended before interrupts nothing.
		d.RunAlone(t.Context(), func(ctx context.Context) {
			if ctx.Err() != nil {
				t.Errorf("got %v", context.Cause(ctx))
			}
		})
	})
}
