package agent

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Certificate is one whose end somebody should be warned of.
type Certificate struct {
	Name string // for people, such as "NATS client"
	PEM  string // one or more certificates; what does not parse is left out
}

// Expiry warns of certificates that are about to end.
type Expiry struct {
	Certificates func() []Certificate
	Send         func(Alert)
}

// expiryCheck is how often the certificates are looked at.
const expiryCheck = time.Hour

// expirySteps are the remaining times at which to warn, and how urgently.
var expirySteps = []struct {
	left     time.Duration
	severity int
}{
	{24 * time.Hour, SeverityCritical},
	{7 * 24 * time.Hour, SeverityError},
	{30 * 24 * time.Hour, SeverityWarning},
}

// Run looks at once and then every hour, and warns once per certificate and step.
func (e Expiry) Run(ctx context.Context) error {
	warned := map[[sha256.Size]byte]int{}
	ticker := time.NewTicker(expiryCheck)
	defer ticker.Stop()
	for {
		e.check(warned)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// check keeps in warned the step that each certificate has reached, counted from 1 for the
// most urgent. Certificates that are gone are forgotten.
func (e Expiry) check(warned map[[sha256.Size]byte]int) {
	current := map[[sha256.Size]byte]bool{}
	for _, c := range e.Certificates() {
		for _, cert := range parse(c.PEM) {
			id := sha256.Sum256(cert.Raw)
			current[id] = true
			step := expiryStep(time.Until(cert.NotAfter))
			if step == 0 || warned[id] != 0 && warned[id] <= step {
				continue
			}
			warned[id] = step
			e.Send(expiryAlert(c.Name, cert, step))
		}
	}
	for id := range warned {
		if !current[id] {
			delete(warned, id)
		}
	}
}

// expiryStep is the most urgent step that applies, counted from 1, or 0.
func expiryStep(left time.Duration) int {
	for i, s := range expirySteps {
		if left <= s.left {
			return i + 1
		}
	}
	return 0
}

func expiryAlert(name string, cert *x509.Certificate, step int) Alert {
	what := "expires"
	if time.Now().After(cert.NotAfter) {
		what = "has expired"
	}
	return NewAlert(expirySteps[step-1].severity,
		fmt.Sprintf("%s certificate %s on %s", name, what, cert.NotAfter.UTC().Format(time.DateOnly)),
		fmt.Sprintf("%s ends %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339)))
}

func parse(text string) (certs []*x509.Certificate) {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return certs
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			certs = append(certs, cert)
		}
	}
}
