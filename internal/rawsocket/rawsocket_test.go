package rawsocket

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair is a socket and one that can send to it, in the kernel's space of abstract names.
func pair(t *testing.T) (c *Conn, sender *Conn, to unix.Sockaddr) {
	t.Helper()
	open := func(name string) (*Conn, unix.Sockaddr) {
		address := &unix.SockaddrUnix{Name: "@" + t.TempDir() + name}
		c, err := Open(unix.AF_UNIX, unix.SOCK_DGRAM, 0, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c, address
	}
	c, to = open("receiver")
	sender, _ = open("sender")
	return c, sender, to
}

// A wait ends when its context is canceled, with and without a deadline, and the next one waits again.
func TestReceiveEndsWithItsContext(t *testing.T) {
	c, sender, to := pair(t)
	far := time.Now().Add(10 * time.Minute)
	for _, deadline := range []time.Time{{}, far} {
		for range 100 {
			cause := errors.New("stop")
			ctx, cancel := context.WithCancelCause(t.Context())
			if !deadline.IsZero() {
				var free context.CancelFunc
				ctx, free = context.WithDeadline(ctx, deadline)
				defer free()
			}
			go cancel(cause)
			if _, _, err := c.Receive(ctx, make([]byte, 10)); !errors.Is(err, cause) {
				t.Fatalf("a canceled wait ended with %v, want its cause", err)
			}
			if _, _, err := c.Receive(ctx, make([]byte, 10)); !errors.Is(err, cause) {
				t.Fatalf("a wait with a canceled context ended with %v, want its cause", err)
			}
			ctx, free := context.WithTimeout(t.Context(), time.Millisecond)
			if _, _, err := c.Receive(ctx, make([]byte, 10)); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a wait ended with %v, want its deadline", err)
			}
			free()
			time.AfterFunc(time.Millisecond, func() {
				if err := sender.Send([]byte("hello"), to); err != nil {
					t.Error(err)
				}
			})
			buffer := make([]byte, 10)
			if n, _, err := c.Receive(t.Context(), buffer); err != nil || string(buffer[:n]) != "hello" {
				t.Fatalf("received %q, %v, want hello", buffer[:n], err)
			}
		}
	}
	if !time.Now().Before(far) {
		t.Error("a wait went on to its deadline")
	}
}
