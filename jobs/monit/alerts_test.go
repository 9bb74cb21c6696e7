package monit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

const mail = "From: monit@localhost\r\nTo: agent@local\r\nSubject: Monit Alert\r\nDate: Sun, 15 Nov 2026 02:09:46 GMT\r\nMessage-id: <1304319946.0@localhost>\r\n\r\n" +
	"Service: nats\r\nEvent: does not exist\r\nAction: restart\r\nDate: Sun, 22 May 2011 20:07:41 +0500\r\nDescription: process is not running\r\n"

func TestParseAlert(t *testing.T) {
	a, ok := ParseAlert(mail)
	if !ok || a.ID != "1304319946.0@localhost" || a.Service != "nats" || a.Event != "does not exist" || a.Action != "restart" || a.Description != "process is not running" || a.Date.Unix() != 1306076861 {
		t.Errorf("got %+v, %v", a, ok)
	}
	if got, want := a.Title([]string{"10.0.0.5", "10.0.1.5"}), "nats (10.0.0.5, 10.0.1.5) - does not exist - restart"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := a.Title(nil), "nats - does not exist - restart"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, ok := ParseAlert("Subject: x\r\n\r\n"); ok {
		t.Error("an empty mail is no alert")
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
	go func() { done <- a.Serve(ctx, l, func(a Alert) { alerts <- a }) }()
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
	got := talk(t, addr, "EHLO localhost", "MAIL FROM: <monit@localhost>", "RCPT TO: <agent@local>", "DATA", mail+".", "VRFY x", "QUIT")
	if want := "220 250 250 250 354 250 500 221"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if a := <-alerts; a.Service != "nats" {
		t.Errorf("got %+v", a)
	}
	// Lines that begin with a dot arrive as they were meant.
	talk(t, addr, "HELO x", "MAIL FROM: a", "RCPT TO: b", "DATA", "Service: s\r\nEvent: e\r\nAction: a\r\n..hidden\r\n.", "QUIT")
	if a := <-alerts; a.Service != "s" {
		t.Errorf("got %+v", a)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	addr, alerts := listen(t, Alerts{Owner: uint32(os.Getuid()) + 1})
	if got := talk(t, addr, "HELO x"); len(got) != 0 {
		t.Errorf("got answers %v", got)
	}
	// Where the kernel's table cannot be read nobody is trusted.
	addr, _ = listen(t, Alerts{Owner: uint32(os.Getuid()), ProcNet: t.TempDir()})
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
	talk(t, addr, "HELO x", "MAIL FROM: a", "RCPT TO: b", "DATA", "Service: s\r\n"+strings.Repeat(strings.Repeat("y", 1000)+"\r\n", 100)+".")
	if got := talk(t, addr, "NOOP", "QUIT"); strings.Join(got, " ") != "220 250 221" {
		t.Errorf("afterwards: got %v", got)
	}
	if len(alerts) != 0 {
		t.Error("an oversized mail became an alert")
	}
}

func TestPeerTableFormats(t *testing.T) {
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:A5C2 0100007F:0B09 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1\n"
	peer := &net.TCPAddr{IP: net.ParseIP("127.0.0.1"), Port: 0xA5C2}
	local := &net.TCPAddr{IP: net.ParseIP("127.0.0.1"), Port: 2825}
	uid, found, err := findUID(strings.NewReader(table), hexAddr(peer, false), hexAddr(local, false))
	if err != nil || !found || uid != 1000 {
		t.Errorf("got %d, %v, %v", uid, found, err)
	}
	if got, want := hexAddr(peer, true), "0000000000000000FFFF00000100007F:A5C2"; got != want {
		t.Errorf("got %s, want %s", got, want)
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
			if len(m) > maxMail+maxMailLine {
				t.Errorf("a mail of %d bytes", len(m))
			}
			if a, ok := ParseAlert(m); ok {
				_ = fmt.Sprint(a.Title(nil), a.Severity())
			}
		})
		server.Close()
	})
}
