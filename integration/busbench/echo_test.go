//go:build bench

package busbench

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// The floors answer every request with the same bytes and look at nothing but its reply subject:
// the cost of the round trip without any agent. One is built on the library, as agents are; the
// other is a single goroutine that reads and writes, which is the least that can be.
const (
	libraryFloor = "library"
	bareFloor    = "bare"
)

// echoVariable makes the test's program a floor: a directory with its certificates, the server's
// address and its kind.
const echoVariable = "BUSBENCH_ECHO"

// TestMain runs a floor where one is asked for.
func TestMain(m *testing.M) {
	if dir := os.Getenv(echoVariable); dir != "" {
		if err := echo(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

func echo(dir string) error {
	file := map[string][]byte{}
	for _, name := range []string{"ca", "certificate", "private_key", "url", "kind"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		file[name] = data
	}
	pair, err := tls.X509KeyPair(file["certificate"], file["private_key"])
	if err != nil {
		return err
	}
	server, err := url.Parse(string(file["url"]))
	if err != nil {
		return err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair},
		ServerName: server.Hostname()}
	config.RootCAs.AppendCertsFromPEM(file["ca"])
	kind := string(file["kind"])
	if kind == bareFloor {
		w, err := dial(server.Host, config, "agent."+kind)
		if err != nil {
			return err
		}
		for {
			_, data, err := w.next()
			if err != nil {
				return err
			}
			w.publish(replyTo(data), pong)
		}
	}
	nc, err := nats.Connect(server.String(), nats.Secure(config))
	if err != nil {
		return err
	}
	_, err = nc.Subscribe("agent."+kind, func(m *nats.Msg) {
		_ = nc.Publish(replyTo(m.Data), pong) // a lost reply shows as a test that hangs
	})
	return err
}

var pong = []byte(`{"value":"pong"}`)

func replyTo(envelope []byte) string {
	_, rest, _ := bytes.Cut(envelope, []byte(`"reply_to":"`))
	subject, _, _ := strings.Cut(string(rest), `"`)
	return subject
}

// runFloor starts a floor.
func runFloor(t *testing.T, d *testnats.Deployment, kind string) (pid int) {
	t.Helper()
	dir := t.TempDir()
	pair := d.Client(testca.AgentName(kind))
	for name, data := range map[string][]byte{"ca": d.CA.PEM, "certificate": pair.Certificate,
		"private_key": pair.PrivateKey,
		"url":         []byte(d.URL().Reveal()), "kind": []byte(kind)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), echoVariable+"="+dir)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process.Pid
}
