package natsbus

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// TestProbeOfAServerThatFallsSilent: packets that are too large for the way are lost after the greeting. That nothing
// arrives is the finding every time, and not what the end of the wait does to the connection.
func TestProbeOfAServerThatFallsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write([]byte("INFO {\"server_id\":\"x\",\"version\":\"2.11.0\",\"max_payload\":1048576,\"tls_required\":true}\r\n"))
				_, _ = io.Copy(io.Discard, conn) // up to the end of the probe
			})
		}
	})
	defer serving.Wait()
	defer func() { _ = l.Close() }()
	d := testnats.Start(t, nil, agentID)
	id := identity(d, testca.AgentName(agentID))
	id.URLs = nil
	for range 20 {
		id.URLs = append(id.URLs, secret.NewURL("nats://"+l.Addr().String()))
	}
	found, err := Probe(t.Context(), agentID, id, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		if p.Failed != ProbeTLS || !p.Timeout || strings.Contains(p.Err.Error(), "closed") {
			t.Errorf("failed in step %q, timeout %v: %v; want a timeout of TLS", p.Failed, p.Timeout, p.Err)
		}
	}
}

// TestProbe stops a probe at each step.
func TestProbe(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	d.SetUsers(testnats.Agent(testca.AgentName(agentID), agentID), testnats.Agent(testca.AgentName("other"), "other"))
	foreign, err := testca.New("foreign")
	if err != nil {
		t.Fatal(err)
	}
	expired, err := d.CA.Issue(testca.Request{CommonName: testca.AgentName(agentID),
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	silentServer, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel and never speaks
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silentServer.Close() }()
	good := identity(d, testca.AgentName(agentID))
	with := func(change func(*Identity)) Identity {
		id := good
		change(&id)
		return id
	}
	at := func(address string) Identity {
		return with(func(id *Identity) { id.URLs = []secret.URL{secret.NewURL("nats://" + address)} })
	}
	for _, c := range []struct {
		name string
		id   Identity
		step ProbeStep
		want string
	}{
		{"all passes", good, "", ""},
		{"name that does not exist", at("director.invalid:4222"), ProbeDNS, "director.invalid"},
		{"port that is closed", at("127.0.0.1:1"), ProbeTCP, "refused"},
		{"server that does not speak", at(silentServer.Addr().String()), ProbeGreeting,
			"did not send a greeting: context deadline exceeded"},
		{"server of another authority", with(func(id *Identity) { id.CA = string(foreign.PEM) }), ProbeTLS,
			"the agent does not trust the server's certificate: x509: certificate signed by unknown authority"},
		{"expired certificate", identityWith(d, expired), ProbeTLS,
			"the server does not accept the agent's certificate: "},
		{"agent that the server does not know", identity(d, testca.AgentName("new")), ProbeAuthorization,
			"the server does not admit this agent: "},
		{"certificate of another agent", identity(d, testca.AgentName("other")), ProbeSubscription, "agent." + agentID},
	} {
		t.Run(c.name, func(t *testing.T) {
			limit := time.Minute
			if c.step == ProbeGreeting {
				limit = time.Second
			}
			found, err := Probe(t.Context(), agentID, c.id, limit)
			if err != nil || len(found) != 1 {
				t.Fatalf("found %v, %v", found, err)
			}
			p := found[0]
			if p.Failed != c.step || c.want == "" && p.Err != nil ||
				c.want != "" && (p.Err == nil || !strings.Contains(p.Err.Error(), c.want)) {
				t.Errorf("failed in step %q with %v, want %q with %q", p.Failed, p.Err, c.step, c.want)
			}
			if (c.step == "" || c.step == ProbeTLS) && p.Certificate == nil {
				t.Error("the server's certificate is not reported")
			}
		})
	}
	if _, err := Probe(t.Context(), agentID, with(func(id *Identity) { id.Certificate = "nonsense" }),
		time.Second); err == nil {
		t.Error("an identity without a certificate is probed")
	}
}
