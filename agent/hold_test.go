package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"cambium/agent/action"
	"cambium/internal/eventually"
	"cambium/internal/testnats"
)

// heldTask is a world with one task under way that ends when release is called.
func heldTask(t *testing.T, hold time.Duration) (w *world, id string, release func(error)) {
	t.Helper()
	end := make(chan error, 1)
	row := action.Row{Mode: action.Async, Lane: action.Overlap, Cancelable: true,
		Bind: action.None(func(ctx context.Context) (string, error) {
			select {
			case err := <-end:
				return "ended", err
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})}
	w = newWorld(t, action.Table{"work": row})
	w.dispatcher.AnswerHold = func() time.Duration { return hold }
	w.ready()
	found := handle.FindStringSubmatch(w.director.Call(agentID, "work"))
	if found == nil {
		t.Fatal("no task handle")
	}
	return w, found[1], func(err error) { end <- err }
}

func running(id string) string {
	return fmt.Sprintf(`{"value":{"agent_task_id":%q,"state":"running"}}`, id)
}

func noReply(t *testing.T, replies <-chan []byte, why string) {
	t.Helper()
	select {
	case data := <-replies:
		t.Fatalf("answered %s although %s", data, why)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestGetTaskIsAnsweredWhenTheTaskEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{{"well", nil, `{"value":"ended"}`}, {"badly", errors.New("no room"), "result: no room"}} {
		t.Run(c.name, func(t *testing.T) {
			w, id, release := heldTask(t, time.Hour) // bounded by maxAnswerHold
			_, replies := w.director.Send(agentID, "get_task", id)
			noReply(t, replies, "the task runs")
			if got := w.director.Call(agentID, "ping"); got != `{"value":"pong"}` {
				t.Fatalf("ping beside a held question: %s", got)
			}
			release(c.err)
			if got := testnats.Receive(t, replies); !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
			// A final answer is not held, however often it is asked for.
			if got := w.director.Call(agentID, "get_task", id); !strings.Contains(got, c.want) {
				t.Errorf("asked again: got %s, want %s", got, c.want)
			}
			eventually.True(t, "nothing is held", func() bool { return w.dispatcher.heldAnswers.Load() == 0 })
		})
	}
}

func TestGetTaskIsHeldForALimitedTime(t *testing.T) {
	w, id, _ := heldTask(t, 150*time.Millisecond)
	begun := time.Now()
	if got := w.director.Call(agentID, "get_task", id); got != running(id) {
		t.Errorf("got %s, want %s", got, running(id))
	}
	if took := time.Since(begun); took < 150*time.Millisecond {
		t.Errorf("answered after %s, before the hold was over", took)
	}
}

func TestGetTaskIsNotHeld(t *testing.T) {
	t.Run("when holding is switched off", func(t *testing.T) {
		w, id, _ := heldTask(t, 0)
		if got := w.director.Call(agentID, "get_task", id); got != running(id) {
			t.Errorf("got %s, want %s", got, running(id))
		}
	})
	t.Run("for an unknown task or wrong arguments", func(t *testing.T) {
		w, _, _ := heldTask(t, time.Hour)
		for _, arguments := range [][]any{{"no-such-task"}, {5}, {}} {
			begun := time.Now()
			if got := w.director.Call(agentID, "get_task", arguments...); !strings.Contains(got, "exception") {
				t.Errorf("%v: got %s, want an exception", arguments, got)
			}
			if took := time.Since(begun); took >= maxAnswerHold {
				t.Errorf("%v: answered after %s", arguments, took)
			}
		}
	})
	t.Run("when too many are held", func(t *testing.T) {
		w, id, _ := heldTask(t, time.Hour)
		w.dispatcher.heldAnswers.Store(maxHeldAnswers)
		defer w.dispatcher.heldAnswers.Store(0)
		if got := w.director.Call(agentID, "get_task", id); got != running(id) {
			t.Errorf("got %s, want %s", got, running(id))
		}
	})
}

// TestCancelAnswersAHeldQuestion: cancel_task ends the hold of a pending get_task. A get_task after
// it is held until the task ends.
func TestCancelAnswersAHeldQuestion(t *testing.T) {
	end := make(chan struct{})
	row := action.Row{Mode: action.Async, Lane: action.Overlap, Cancelable: true,
		Bind: action.None(func(ctx context.Context) (string, error) {
			<-end // takes its time to notice
			return "", context.Cause(ctx)
		})}
	w := newWorld(t, action.Table{"work": row})
	w.dispatcher.AnswerHold = func() time.Duration { return time.Hour }
	w.ready()
	id := handle.FindStringSubmatch(w.director.Call(agentID, "work"))[1]
	_, replies := w.director.Send(agentID, "get_task", id)
	noReply(t, replies, "the task runs")
	if got := w.director.Call(agentID, "cancel_task", id); got != `{"value":"canceled"}` {
		t.Fatalf("cancel_task: %s", got)
	}
	if got := testnats.Receive(t, replies); got != running(id) {
		t.Errorf("held question: got %s, want %s", got, running(id))
	}
	_, replies = w.director.Send(agentID, "get_task", id)
	noReply(t, replies, "the canceled task still runs")
	close(end)
	if got := testnats.Receive(t, replies); !strings.Contains(got, "task was canceled") {
		t.Errorf("got %s, want the canceled task's outcome", got)
	}
}

func TestAStoppingAgentAnswersHeldQuestions(t *testing.T) {
	w, id, _ := heldTask(t, time.Hour)
	_, replies := w.director.Send(agentID, "get_task", id)
	noReply(t, replies, "the task runs")
	w.stop()
	if got := testnats.Receive(t, replies); got != running(id) {
		t.Errorf("got %s, want %s", got, running(id))
	}
}

// TestAHeldQuestionSurvivesARotation asks over a connection that is replaced while the answer is held.
func TestAHeldQuestionSurvivesARotation(t *testing.T) {
	w, id, release := heldTask(t, time.Hour)
	_, replies := w.director.Send(agentID, "get_task", id)
	noReply(t, replies, "the task runs")
	rotation, err := w.nats.Rotate(t.Context(), w.identity())
	check(t, err)
	rotation.Commit(t.Context())
	release(nil)
	if got := testnats.Receive(t, replies); got != `{"value":"ended"}` {
		t.Errorf("got %s", got)
	}
}

// TestAClosedHTTPSConnectionDropsItsQuestion: there is no other way back to that caller.
func TestAClosedHTTPSConnectionDropsItsQuestion(t *testing.T) {
	w, id, release := heldTask(t, time.Hour)
	address := must[*url.URL](t)(url.Parse(w.https)).Host
	conn := must[*tls.Conn](t)(tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}))
	body := fmt.Sprintf(`{"method":"get_task","arguments":[%q]}`, id)
	_, err := fmt.Fprintf(conn, "POST /agent HTTP/1.1\r\nHost: vm\r\nAuthorization: Basic %s\r\nContent-Length: %d\r\n\r\n%s",
		base64.StdEncoding.EncodeToString([]byte("mbus:s3cret")), len(body), body)
	check(t, err)
	eventually.True(t, "the question is held", func() bool { return w.dispatcher.heldAnswers.Load() == 1 })
	check(t, conn.Close())
	eventually.True(t, "the question is dropped", func() bool { return w.dispatcher.heldAnswers.Load() == 0 })

	conn = must[*tls.Conn](t)(tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}))
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST /agent HTTP/1.1\r\nHost: vm\r\nAuthorization: Basic %s\r\nContent-Length: %d\r\n\r\n%s",
		base64.StdEncoding.EncodeToString([]byte("mbus:s3cret")), len(body), body)
	check(t, err)
	eventually.True(t, "the question is held", func() bool { return w.dispatcher.heldAnswers.Load() == 1 })
	release(nil)
	line, err := bufio.NewReader(conn).ReadString('\n')
	check(t, err)
	if !strings.Contains(line, "200") {
		t.Errorf("got %s", line)
	}
}
