//go:build ns

package bus

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/lab/netns"

	"cambium/internal/skiptest"
	"github.com/nats-io/nats.go"
)

func space(t *testing.T) netns.Namespace {
	t.Helper()
	ns, err := netns.Create(fmt.Sprintf("cambium-b%d", os.Getpid()))
	if err != nil {
		skiptest.Skip(t, fmt.Errorf("network namespaces: %w", err))
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// TestNSPermissions checks what every user of the bus may do, on the built-in server and on the
// program.
func TestNSPermissions(t *testing.T) {
	programs := map[string]string{"embedded": ""}
	if path, err := exec.LookPath("nats-server"); err == nil {
		programs["program"] = path
	} else if os.Getenv("CI") != "" {
		t.Error(err)
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) { permissionsOn(t, program) })
	}
}

func permissionsOn(t *testing.T, program string) {
	ca, err := testca.New("bus")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Net: space(t), Host: "127.0.0.1", Port: 4222, CA: ca,
		Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if conn, err := s.Connect(testca.AgentName("a")); err == nil {
		conn.Close()
		t.Error("an agent was let in before it was admitted")
	}
	for _, name := range []string{testca.AgentName("a"), testca.BootstrapName("b")} {
		if _, err := s.Admit(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		user, verb, subject string
		allowed             bool
	}{
		{testca.AgentName("a"), "publish", "hm.agent.heartbeat.a", true},
		{testca.AgentName("a"), "publish", "hm.agent.alert.a", true},
		{testca.AgentName("a"), "publish", "hm.agent.shutdown.a", true},
		{testca.AgentName("a"), "publish", "director.x.a.1", true},
		{testca.AgentName("a"), "subscribe", "agent.a", true},
		{testca.BootstrapName("b"), "subscribe", "agent.b", true},
		{testca.AgentName("a"), "publish", "hm.agent.heartbeat.b", false},
		{testca.AgentName("a"), "publish", "director.x.b.1", false},
		{testca.AgentName("a"), "publish", "director.x.a.1.2", false},
		{testca.AgentName("a"), "publish", "agent.b", false},
		{testca.AgentName("a"), "subscribe", "agent.b", false},
		{testca.AgentName("a"), "subscribe", "_INBOX.>", false},
		{testca.AgentName("a"), "subscribe", "agent.*", false},
		{testca.DirectorName, "publish", "agent.a", true},
		{testca.DirectorName, "publish", "hm.director.alert", true},
		{testca.DirectorName, "subscribe", "director.>", true},
		{testca.DirectorName, "publish", "hm.agent.alert.a", false},
		{testca.HealthMonitorName, "subscribe", "hm.agent.heartbeat.*", true},
		{testca.HealthMonitorName, "subscribe", "agent.a", false},
		{testca.HealthMonitorName, "publish", "agent.a", false},
	} {
		if got := attempt(t, s, c.user, c.verb, c.subject); got != c.allowed {
			t.Errorf("%s may %s %s: %v, want %v", c.user, c.verb, c.subject, got, c.allowed)
		}
	}
	if err := s.Expel(testca.AgentName("a")); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s, testca.AgentName("a"))
	s.Forget("b")
	if _, err := s.Admit(testca.AgentName("c")); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s, testca.BootstrapName("b"))
}

// wantRefused waits until a user is not let in any more: a program reloads when it has read the signal.
func wantRefused(t *testing.T, s *Server, user string) {
	t.Helper()
	eventually.True(t, "the refusal of "+user, func() bool {
		conn, err := s.Connect(user)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

// attempt connects as the user, does it, and reports whether the server allowed it.
func attempt(t *testing.T, s *Server, user, verb, subject string) bool {
	t.Helper()
	var conn *nats.Conn
	var err error
	// A program lets a new user in once it has reloaded.
	eventually.Nil(t, "a connection as "+user, func() error { conn, err = s.Connect(user); return err })
	defer conn.Close()
	if verb == "publish" {
		err = conn.Publish(subject, []byte("x"))
	} else {
		_, err = conn.Subscribe(subject, func(*nats.Msg) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil { // the server answers in order: a refusal has come by now
		t.Fatal(err)
	}
	return !errors.Is(conn.LastError(), nats.ErrPermissionViolation)
}
