package testca

import (
	"crypto/x509"
	"testing"
)

func TestSubjectsAndChain(t *testing.T) {
	ca, err := New("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.Client(AgentName("a-1"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.Server("127.0.0.1", "nats.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pair    Pair
		subject string
		host    string
		usage   x509.ExtKeyUsage
	}{
		{client, "CN=a-1.agent.bosh-internal,O=Cloud Foundry,C=USA", "", x509.ExtKeyUsageClientAuth},
		{server, "CN=default.nats.bosh-internal,O=Cloud Foundry,C=USA", "127.0.0.1", x509.ExtKeyUsageServerAuth},
	} {
		pair, err := c.pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		leaf := pair.Leaf
		if got := leaf.Subject.String(); got != c.subject {
			t.Errorf("subject: got %q, want %q", got, c.subject)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), DNSName: c.host,
			KeyUsages: []x509.ExtKeyUsage{c.usage}}); err != nil {
			t.Errorf("%s does not verify: %v", c.subject, err)
		}
	}
}
