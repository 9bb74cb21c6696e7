package agent

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
)

// Certificate is a certificate whose expiry is watched.
type Certificate struct {
	Name string // for alerts, such as "NATS client"
	PEM  string // one or more certificates; blocks that do not parse are skipped
}

// Expiry alerts before certificates expire.
type Expiry struct {
	Bus          Publisher
	Certificates func() []Certificate
	// Connected receives a token whenever the bus has become reachable.
	Connected <-chan struct{}
	// Path is the file that records the alerts sent, so that a restarted agent does not repeat
	// them.
	Path string
	Log  *logrus.Entry
}

// expiryCheck is the interval between checks of the certificates.
const expiryCheck = time.Hour

// expirySteps are the remaining days at which to warn, and how urgently; the most urgent first.
var expirySteps = []struct{ days, severity int }{
	{1, severityCritical},
	{7, severityError},
	{30, severityWarning},
}

// announced maps the SHA-256 of each certificate whose expiry was announced to the days of the last
// step.
type announced map[string]int

// Run checks the certificates at once, every hour, and whenever the bus is back. It sends one alert per certificate and
// step.
func (e Expiry) Run(ctx context.Context) error {
	known := e.load()
	ticker := time.NewTicker(expiryCheck)
	defer ticker.Stop()
	for {
		e.check(ctx, known)
		select {
		case <-ticker.C:
		case <-e.Connected:
		case <-ctx.Done():
			return nil
		}
	}
}

// check sends the warnings that are due. If one cannot be sent, the next check sends it. Certificates that are no
// longer in use are removed from known.
func (e Expiry) check(ctx context.Context, known announced) {
	if !e.Bus.Connected() {
		return
	}
	changed := false
	current := announced{}
	for _, c := range e.Certificates() {
		for _, cert := range parse(c.PEM) {
			id := fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
			current[id] = 1
			step := expiryStep(time.Until(cert.NotAfter))
			if step < 0 || known[id] != 0 && known[id] <= expirySteps[step].days {
				continue
			}
			if err := e.Bus.Publish(ctx, "hm", "alert", expiryAlert(c.Name, cert, step)); err != nil {
				e.Log.WithError(err).WithField("certificate", c.Name).Warn("cannot send an alert")
				continue
			}
			known[id], changed = expirySteps[step].days, true
		}
	}
	for id := range known {
		if current[id] == 0 {
			delete(known, id)
			changed = true
		}
	}
	if changed {
		e.save(known)
	}
}

// load returns the warnings that earlier processes of the agent sent. If the file cannot be read, they are sent again.
func (e Expiry) load() announced {
	known := announced{}
	data, err := os.ReadFile(e.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return known
	}
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil || known == nil {
		e.Log.WithError(err).WithField("path", e.Path).
			Warn("cannot read which certificate warnings were sent; they are repeated")
		return announced{}
	}
	return known
}

func (e Expiry) save(known announced) {
	data, err := json.Marshal(known)
	if err == nil {
		err = atomicfile.Write(e.Path, data, 0o600)
	}
	if err != nil {
		e.Log.WithError(err).WithField("path", e.Path).
			Warn("cannot record which certificate warnings were sent; they will be repeated")
	}
}

// expiryStep returns the index of the most urgent step that applies, or -1.
func expiryStep(left time.Duration) int {
	for i, s := range expirySteps {
		if left <= time.Duration(s.days)*24*time.Hour {
			return i
		}
	}
	return -1
}

func expiryAlert(name string, cert *x509.Certificate, step int) Alert {
	what := "expires"
	if time.Now().After(cert.NotAfter) {
		what = "has expired"
	}
	return newAlert(expirySteps[step].severity,
		fmt.Sprintf("%s certificate %s on %s", name, what, cert.NotAfter.UTC().Format(time.DateOnly)),
		fmt.Sprintf("%s expires at %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339)))
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
