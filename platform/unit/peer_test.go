package unit

import (
	"bufio"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

// peer is the other end of a D-Bus connection. It speaks the real protocol on a private socket and answers calls with a
// function.
type peer struct {
	t     *testing.T
	mu    sync.Mutex
	calls []string // members in the order they came
	conns []net.Conn
	// lateFirst holds the first message back until the second arrives, as systemd does if it has
	// read the first one together with the end of the handshake.
	lateFirst bool
	answer    func(p *peer, c net.Conn, call *dbus.Message) // sends the reply itself
}

func listen(t *testing.T, path string, answer func(*peer, net.Conn, *dbus.Message)) *peer {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, answer: answer}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			go p.serve(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		p.hangUp()
		<-done
	})
	return p
}

func (p *peer) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *peer) members() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.calls, " ")
}

func (p *peer) serve(c net.Conn) {
	r := bufio.NewReader(c)
	if _, err := r.ReadByte(); err != nil { // the leading zero
		return
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "AUTH":
			if strings.TrimSpace(line) == "AUTH" {
				c.Write([]byte("REJECTED EXTERNAL\r\n"))
				continue
			}
			c.Write([]byte("OK 0123456789abcdef0123456789abcdef\r\n"))
		case "NEGOTIATE_UNIX_FD":
			c.Write([]byte("ERROR\r\n"))
		case "BEGIN":
			p.messages(r, c)
			return
		}
	}
}

func (p *peer) messages(r *bufio.Reader, c net.Conn) {
	var held *dbus.Message
	for first := true; ; first = false {
		m, err := dbus.DecodeMessage(r)
		if err != nil {
			return
		}
		if first && p.lateFirst {
			held = m
			continue
		}
		if held != nil {
			p.reply(c, held)
			held = nil
		}
		member, _ := m.Headers[dbus.FieldMember].Value().(string)
		if member == "Ping" {
			p.reply(c, m)
			continue
		}
		p.mu.Lock()
		p.calls = append(p.calls, member)
		p.mu.Unlock()
		p.answer(p, c, m)
	}
}

func (p *peer) send(c net.Conn, m *dbus.Message) {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	// An error means that the client hung up, which is what some tests want.
	_ = m.EncodeTo(c, binary.LittleEndian)
}

func (p *peer) reply(c net.Conn, to *dbus.Message, body ...any) {
	p.send(c, &dbus.Message{Type: dbus.TypeMethodReply, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(to.Serial())}})
}

func (p *peer) fail(c net.Conn, to *dbus.Message, name, text string) {
	p.send(c, &dbus.Message{Type: dbus.TypeError, Body: []any{text}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(to.Serial()), dbus.FieldErrorName: dbus.MakeVariant(name)}})
}

func (p *peer) signal(c net.Conn, member string, body ...any) {
	p.send(c, &dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		dbus.FieldMember:    dbus.MakeVariant(member)}})
}
