package monit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/sockowner"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const mail = "From: monit@localhost\r\nTo: agent@local\r\nSubject: Monit Alert\r\nDate: Sun, 15 Nov 2026 02:09:46 GMT\r\nMessage-id: <1304319946.0@localhost>\r\n\r\n" +
	"Service: nats\r\nEvent: does not exist\r\nAction: restart\r\nDate: Sun, 22 May 2011 20:07:41 +0500\r\nDescription: process is not running\r\n"

func TestParseAlert(t *testing.T) {
	a, ok := ParseAlert(mail)
	if !ok || a.ID != "1304319946.0@localhost" || a.Service != "nats" || a.Event != "does not exist" ||
		a.Action != "restart" || a.Description != "process is not running" || a.Date.Unix() != 1306076861 {
		t.Errorf("got %+v, %v", a, ok)
	}
	if got, want := a.Title([]string{"10.0.0.5", "10.0.1.5"}),
		"nats (10.0.0.5, 10.0.1.5) - does not exist - restart"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := a.Title(nil), "nats - does not exist - restart"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, ok := ParseAlert("Subject: x\r\n\r\n"); ok {
		t.Error("an empty mail is not an alert")
	}
}

func listen(t *testing.T, a Alerts) (addr string, alerts chan Alert) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	a.Log = logrus.NewEntry(log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	alerts = make(chan Alert, 10)
	go func() { done <- a.serve(ctx, l, func(a Alert) { alerts <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), alerts
}

// talk sends lines and returns the first line of the answer to each.
func talk(t *testing.T, addr string, lines ...string) (answers []string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(conn)
	for _, line := range append([]string{""}, lines...) {
		if line != "" {
			io.WriteString(conn, line+"\r\n")
		}
		answer, err := in.ReadString('\n')
		if err != nil {
			return answers
		}
		answers = append(answers, strings.Fields(answer)[0])
	}
	return answers
}

func TestMailIntake(t *testing.T) {
	addr, alerts := listen(t, Alerts{Owner: uint32(os.Getuid())})
	got := talk(t, addr, "EHLO localhost", "MAIL FROM: <monit@localhost>", "RCPT TO: <agent@local>", "DATA", mail+".",
		"VRFY x", "QUIT")
	if want := "220 250 250 250 354 250 500 221"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if a := <-alerts; a.Service != "nats" {
		t.Errorf("got %+v", a)
	}
	// Lines that begin with a dot arrive as they were meant.
	talk(t, addr, "HELO x", "MAIL FROM: a", "RCPT TO: b", "DATA", "Service: s\r\nEvent: e\r\nAction: a\r\n..hidden\r\n.",
		"QUIT")
	if a := <-alerts; a.Service != "s" {
		t.Errorf("got %+v", a)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	addr, alerts := listen(t, Alerts{Owner: uint32(os.Getuid()) + 1})
	if got := talk(t, addr, "HELO x"); len(got) != 0 {
		t.Errorf("got answers %v", got)
	}
	// Where the kernel's table cannot be read no peer is trusted.
	addr, _ = listen(t, Alerts{Owner: uint32(os.Getuid()), Sockets: sockowner.Table{Dir: t.TempDir()}})
	if got := talk(t, addr, "HELO x"); len(got) != 0 {
		t.Errorf("got answers %v", got)
	}
	if len(alerts) != 0 {
		t.Error("an alert came through")
	}
}

func TestIntakeIsBounded(t *testing.T) {
	addr, alerts := listen(t, Alerts{Owner: uint32(os.Getuid())})
	talk(t, addr, "HELO "+strings.Repeat("x", 2*maxMailLine))
	// Its sender learns that it need not send the mail again, and can send the next one.
	for name, text := range map[string]string{
		"lines": strings.Repeat(strings.Repeat("y", 1000)+"\r\n", 100), "line": strings.Repeat("y", 2*maxMail) + "\r\n",
		"dot at the limit": strings.Repeat("y", maxMail-len("Service: s\n")) + ".\r\n",
	} {
		got := talk(t, addr, "HELO x", "MAIL FROM: a", "RCPT TO: b", "DATA", "Service: s\r\n"+text+".", "NOOP", "QUIT")
		if want := "220 250 250 250 354 552 250 221"; strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", name, got, want)
		}
	}
	if got := talk(t, addr, "NOOP", "QUIT"); strings.Join(got, " ") != "220 250 221" {
		t.Errorf("afterwards: got %v", got)
	}
	if len(alerts) != 0 {
		t.Error("an oversized mail became an alert")
	}
}

// TestPortThatIsTaken starts while another process has the port: Run reports that, and takes the port once it is free.
func TestPortThatIsTaken(t *testing.T) {
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	log := logrus.New()
	log.SetOutput(t.Output())
	ctx, cancel := context.WithCancel(t.Context())
	reported, done, alerts := make(chan error, 100), make(chan error), make(chan Alert, 1)
	kept := 0
	a := Alerts{Log: logrus.NewEntry(log), Owner: uint32(os.Getuid()), Unserved: func(err error) { reported <- err },
		Keep: func(*net.TCPListener) { kept++ }}
	go func() { done <- a.Run(ctx, squatter.Addr().String(), func(a Alert) { alerts <- a }) }()
	if err := <-reported; err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("user %d listens on %s", os.Getuid(), squatter.Addr())) {
		t.Errorf("reported %v, want the user that has the port", err)
	}
	squatter.Close()
	for served := false; !served; {
		select {
		case err := <-reported:
			served = err == nil
		case err := <-done:
			t.Fatalf("gave up: %v", err)
		}
	}
	talk(t, squatter.Addr().String(), "HELO x", "MAIL FROM: a", "RCPT TO: b", "DATA", mail+".", "QUIT")
	if got := <-alerts; got.Service != "nats" {
		t.Errorf("got %+v", got)
	}
	cancel()
	if err := <-done; err != nil || kept != 1 {
		t.Errorf("got %v, the socket was kept %d times", err, kept)
	}
}

// scarce fails to accept a few times, as a process without free descriptors does.
type scarce struct {
	net.Listener
	left int
}

func (s *scarce) Accept() (net.Conn, error) {
	if s.left > 0 {
		s.left--
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	return s.Listener.Accept()
}

func TestListenerOutlivesScarcity(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reported []error
	done := make(chan error)
	a := Alerts{Log: logrus.NewEntry(log), Owner: uint32(os.Getuid()),
		Unserved: func(err error) { reported = append(reported, err) }}
	go func() { done <- a.serve(ctx, &scarce{l, 1}, func(Alert) {}) }()
	if got := talk(t, l.Addr().String(), "NOOP", "QUIT"); strings.Join(got, " ") != "220 250 221" {
		t.Errorf("afterwards: got %v", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(reported) != 3 || reported[0] != nil || !errors.Is(reported[1], unix.EMFILE) || reported[2] != nil {
		t.Errorf("reported %v, want the lack of descriptors and its end", reported)
	}
}

// TestRefusalsAreLoggedOncePerPause: a job that connects without end must not fill the log.
func TestRefusalsAreLoggedOncePerPause(t *testing.T) {
	var r refusals
	now := time.Now()
	reported := 0
	for range 10_000 {
		if _, logIt := r.count(now); logIt {
			reported++
		}
	}
	if suppressed, logIt := r.count(now.Add(refusalPause)); reported != 1 || !logIt || suppressed != 9_999 {
		t.Errorf("reported %d times, then %v with %d more; want once, and 9999", reported, logIt, suppressed)
	}
}

func FuzzMail(f *testing.F) {
	f.Add("HELO x\r\nDATA\r\n" + mail + ".\r\nQUIT\r\n")
	f.Add("\r\n.\r\nDATA\r\n.\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		client, server := net.Pipe()
		go func() {
			io.WriteString(client, text)
			client.Close()
		}()
		go io.Copy(io.Discard, client)
		_ = session(server, func(m string) {
			if len(m) > maxMail {
				t.Errorf("a mail of %d bytes", len(m))
			}
			if a, ok := ParseAlert(m); ok {
				_ = fmt.Sprint(a.Title(nil), a.Severity())
			}
		})
		server.Close()
	})
}
