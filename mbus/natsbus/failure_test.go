package natsbus

import (
	"strings"
	"testing"
	"time"

	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// TestFailuresAreReported: each failed try is reported with the cause, and whether an identity was rejected.
func TestFailuresAreReported(t *testing.T) {
	stranger, err := testca.New("another-ca")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := stranger.Client(testca.AgentName(agentID))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, d *testnats.Deployment) Identity
		want    string
		refused bool
	}{
		{"an authority that did not sign the server's certificate", func(_ *testing.T, d *testnats.Deployment) Identity {
			id := identity(d, testca.AgentName(agentID))
			id.CA = string(stranger.PEM)
			return id
		}, "the agent does not trust the server's certificate: x509: certificate signed by unknown authority", true},
		{"a server's certificate that has expired", func(t *testing.T, d *testnats.Deployment) Identity {
			pair, err := d.CA.Issue(testca.Request{CommonName: testca.ServerName, Hosts: []string{"127.0.0.1"},
				NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			d.Down()
			d.SetServerCertificate(pair)
			d.Up()
			return identity(d, testca.AgentName(agentID))
		}, "the agent does not trust the server's certificate: x509: certificate has expired or is not yet valid", true},
		{"a client certificate of another authority", func(_ *testing.T, d *testnats.Deployment) Identity { return identityWith(d, foreign) },
			"the server does not accept the agent's certificate: ", true},
		{"an agent that the server does not know", func(_ *testing.T, d *testnats.Deployment) Identity {
			return identity(d, testca.AgentName("stranger"))
		}, "the server does not admit this agent: ", true},
		{"a server that is down", func(_ *testing.T, d *testnats.Deployment) Identity {
			d.Down()
			return identity(d, testca.AgentName(agentID))
		}, "connect: connection refused", false},
		{"a server that accepts and says nothing", func(t *testing.T, d *testnats.Deployment) Identity {
			l, id := overLink(t, d)
			l.Freeze(true)
			return id
		}, "the server did not send a greeting: ", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testnats.Start(t, nil, agentID)
			failures := make(chan Failure, 100)
			start(t, d, Options{Identity: c.prepare(t, d), OnFailure: func(f Failure) { failures <- f }})
			for range 2 {
				select {
				case f := <-failures:
					if !strings.Contains(f.Err.Error(), c.want) || f.Refused != c.refused ||
						!strings.HasPrefix(f.Server, "127.0.0.1:") {
						t.Errorf("%s: refused %v, %v; want %v, %q", f.Server, f.Refused, f.Err, c.refused, c.want)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("no failure is reported")
				}
			}
		})
	}
}

// A lost connection is reported at once, and the next one too.
func TestLossIsReported(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	failures, connects := make(chan Failure, 100), make(chan string, 100)
	start(t, d, Options{OnFailure: func(f Failure) { failures <- f },
		OnConnect: func(server string) { connects <- server }})
	server := <-connects
	if !strings.HasPrefix(server, "127.0.0.1:") {
		t.Errorf("connected to %q", server)
	}
	d.Down()
	if f := <-failures; f.Server != server || f.Err == nil || f.Refused {
		t.Errorf("the loss is reported as %+v", f)
	}
	d.Up()
	if second := <-connects; second != server {
		t.Errorf("connected to %q, want %q", second, server)
	}
}
