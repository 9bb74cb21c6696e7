package monit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"cambium/internal/retry"
	"cambium/internal/sockowner"
	"cambium/internal/tcp"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// AlertsAddress is the address to which a stemcell's monit sends mails.
const AlertsAddress = "127.0.0.1:2825"

// AlertsSocket is the name under which the service manager keeps the alerts' socket.
const AlertsSocket = "alerts"

// Limits for mails. monit's have a few hundred bytes.
const (
	maxMail        = 64 << 10
	maxMailLine    = 4 << 10
	maxConnections = 16
	mailTimeout    = 30 * time.Second
)

// portPause is the pause between two attempts to open the port, or to accept a connection if the machine lacks file
// descriptors or memory.
const portPause = time.Second

// Alerts receives monit's mails with the subset of SMTP that monit uses. It accepts them only from root.
type Alerts struct {
	Log *logrus.Entry
	// Owner is the user whose connections are served; 0 is root.
	Owner uint32
	// Sockets looks up the owners of connections.
	Sockets sockowner.Table
	// Listener is the socket that the service manager has kept, or that was opened before any job ran; may be nil.
	Listener *net.TCPListener
	// Keep is called with the socket if Run has opened it.
	Keep func(*net.TCPListener)
	// Unserved is called with the reason at each failed attempt to open the port, and with nil once it is open.
	Unserved func(error)
}

// Run listens on addr until ctx ends, and calls handle for each alert, one at a time. If the port is in use, it
// retries.
func (a Alerts) Run(ctx context.Context, addr string, handle func(Alert)) error {
	listener := a.Listener
	for listener == nil {
		var err error
		if listener, err = ListenAlerts(ctx, addr); err == nil {
			if a.Keep != nil {
				a.Keep(listener)
			}
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		a.unserved(a.taken(addr, err))
		if retry.Sleep(ctx, portPause) != nil {
			return nil
		}
	}
	return a.serve(ctx, listener, handle)
}

// ListenAlerts opens the port.
func ListenAlerts(ctx context.Context, addr string) (*net.TCPListener, error) {
	listener, err := tcp.Listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("listen for alerts: %w", err)
	}
	return listener, nil
}

// taken adds to a listen error which user has the port.
func (a Alerts) taken(addr string, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		if wanted, parseErr := netip.ParseAddrPort(addr); parseErr == nil {
			if uid, ownerErr := a.Sockets.Listener(wanted); ownerErr == nil {
				return fmt.Errorf("a process of user %d listens on %s: end it", uid, addr)
			}
		}
	}
	return err
}

func (a Alerts) unserved(err error) {
	if a.Unserved != nil {
		a.Unserved(err)
	}
}

// serve serves a listener and closes it.
func (a Alerts) serve(ctx context.Context, listener net.Listener, handle func(Alert)) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer listener.Close()
	a.unserved(nil)
	var running sync.WaitGroup
	defer running.Wait()
	var handling sync.Mutex
	var refused refusals
	slots := make(chan struct{}, maxConnections)
	failing := false
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept alerts: %w", err)
			}
			// No file descriptors or no memory: retry on the same listener.
			failing = true
			a.unserved(fmt.Errorf("accept alerts: %w", err))
			if retry.Sleep(ctx, portPause) != nil {
				return nil
			}
			continue
		}
		if failing {
			failing = false
			a.unserved(nil)
		}
		select {
		case slots <- struct{}{}:
		default:
			// monit uses one connection at a time, queues its mail and tries again.
			conn.Close()
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			// monit waits for the greeting: it is still connected, and the kernel still knows its user.
			uid, err := a.Sockets.Peer(conn)
			if err != nil || uid != a.Owner {
				if more, logIt := refused.count(time.Now()); logIt {
					a.Log.WithError(err).
						WithFields(logrus.Fields{"uid": uid, "others": more}).
						Warn("refused a connection to the alert port")
				}
				return
			}
			err = session(conn, func(mail string) {
				handling.Lock()
				defer handling.Unlock()
				if alert, ok := ParseAlert(mail); ok {
					handle(alert)
				}
			})
			if err != nil && ctx.Err() == nil {
				a.Log.WithError(err).Warn("alert connection failed")
			}
		})
	}
}

// refusalPause is the minimum time between two log entries about refused connections. A job can open thousands in a
// second, and journald drops entries of a service that exceeds its rate limit, even important ones.
const refusalPause = time.Minute

// refusals counts refused connections.
type refusals struct {
	mu         sync.Mutex
	logged     time.Time
	suppressed int
}

// count adds a refusal. It reports whether to log it, and how many before were not logged.
func (r *refusals) count(now time.Time) (suppressed int, logIt bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.logged.IsZero() && now.Sub(r.logged) < refusalPause {
		r.suppressed++
		return 0, false
	}
	suppressed, r.suppressed, r.logged = r.suppressed, 0, now
	return suppressed, true
}

// session serves the subset of SMTP that monit uses.
func session(conn net.Conn, deliver func(string)) error {
	in := bufio.NewReaderSize(conn, maxMailLine)
	reply := func(text string) error {
		if err := conn.SetDeadline(time.Now().Add(mailTimeout)); err != nil {
			return err
		}
		_, err := io.WriteString(conn, text+"\r\n")
		return err
	}
	if err := reply("220 localhost"); err != nil {
		return err
	}
	for {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		verb, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		answer := "250 OK"
		switch strings.ToUpper(verb) {
		case "HELO", "EHLO", "MAIL", "RCPT", "RSET", "NOOP":
		case "DATA":
			if err := reply("354 end with a dot"); err != nil {
				return err
			}
			mail, err := readMail(in)
			if errors.Is(err, errTooLong) {
				answer = "552 " + err.Error()
				break
			}
			if err != nil {
				return err
			}
			deliver(mail)
		case "QUIT":
			return reply("221 bye")
		default:
			answer = "500 not understood"
		}
		if err := reply(answer); err != nil {
			return err
		}
	}
}

func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("a line is longer than %d bytes", maxMailLine)
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

var errTooLong = fmt.Errorf("the mail is longer than %d bytes", maxMail)

// readMail reads to the end of a mail even if it is too long, so that its sender gets an answer and does not send it
// again.
func readMail(in *bufio.Reader) (string, error) {
	lines := textproto.NewReader(in).DotReader()
	mail, err := io.ReadAll(io.LimitReader(lines, maxMail))
	if err != nil {
		return "", err
	}
	switch more, err := io.Copy(io.Discard, lines); {
	case err != nil:
		return "", err
	case more > 0:
		return "", errTooLong
	}
	return string(mail), nil
}
