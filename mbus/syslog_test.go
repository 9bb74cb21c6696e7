package mbus

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSyslogFacilityAndPriority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := NewSyslog(Program{Version: "1.2", Supervisor: "monit"})
	s.Network, s.Address = "unixgram", path
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	// Recorded before there is a daemon: kept.
	s.Record(NATSEvent("ping", "r", Value("pong"), "10.0.0.1:4222", "vm"))
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	read := func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 64<<10)
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
	// Facility daemon is 3: 3*8+7 for debug, 3*8+3 for error.
	if got := read(); !strings.HasPrefix(got, "<31>") || !strings.Contains(got, " vcap.agent[") ||
		!strings.Contains(got, "|ping|1|duser=r src=10.0.0.1 spt=4222 shost=vm cs5=1.2 cs5Label=agentVersion cs6=monit cs6Label=supervisor") {
		t.Errorf("got %q", got)
	}
	s.Record(NATSEvent("hop", "", Exception("unknown message hop"), "", ""))
	if got := read(); !strings.HasPrefix(got, "<27>") || !strings.Contains(got, "|hop|7|") ||
		!strings.Contains(got, "cs6=monit") {
		t.Errorf("got %q", got)
	}
}

func TestSyslogNeverBlocks(t *testing.T) {
	s := NewSyslog(Program{}) // not running
	for range 3 * auditQueue {
		s.Record(Event{Name: "ping"})
		s.Record(Event{Name: "hop", Failed: true})
	}
	if len(s.others) != auditQueue || len(s.failures) != auditQueue {
		t.Errorf("%d and %d lines are kept, want %d each", len(s.others), len(s.failures), auditQueue)
	}
}
