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
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// AlertsAddress is where a stemcell's monit sends its mails.
const AlertsAddress = "127.0.0.1:2825"

// Limits of the mail intake. monit's mails are a few hundred bytes.
const (
	maxMail        = 64 << 10
	maxMailLine    = 4 << 10
	maxConnections = 16
	mailTimeout    = 30 * time.Second
)

// Alerts takes in monit's mails: just enough SMTP for monit, from root only.
type Alerts struct {
	Log *logrus.Entry
	// Owner is the only user whose connections are served; root.
	Owner uint32
	// ProcNet is where the kernel lists connections; /proc/net if empty.
	ProcNet string
}

// ListenAlerts serves addr until ctx ends and calls handle for each alert, one at a time.
func ListenAlerts(ctx context.Context, addr string, log *logrus.Entry, handle func(Alert)) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for alerts: %w", err)
	}
	return Alerts{Log: log}.Serve(ctx, listener, handle)
}

// Serve is ListenAlerts on a listener, which it closes.
func (a Alerts) Serve(ctx context.Context, listener net.Listener, handle func(Alert)) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer listener.Close()
	var running sync.WaitGroup
	defer running.Wait()
	var one sync.Mutex
	slots := make(chan struct{}, maxConnections)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			var temporary net.Error
			if errors.As(err, &temporary) && temporary.Timeout() {
				continue
			}
			return fmt.Errorf("accept alerts: %w", err)
		}
		select {
		case slots <- struct{}{}:
		default:
			// Who holds all slots is not monit; it queues its mail and tries again.
			conn.Close()
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			uid, err := peerUID(a.ProcNet, conn)
			if err != nil || uid != a.Owner {
				a.Log.WithError(err).WithField("uid", uid).Warn("refused a connection to the alert port")
				return
			}
			err = session(conn, func(mail string) {
				one.Lock()
				defer one.Unlock()
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

// session speaks SMTP as far as monit does.
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

func readMail(in *bufio.Reader) (string, error) {
	var mail strings.Builder
	for {
		line, err := readLine(in)
		if err != nil {
			return "", err
		}
		if line == "." {
			return mail.String(), nil
		}
		mail.WriteString(strings.TrimPrefix(line, "."))
		mail.WriteByte('\n')
		if mail.Len() > maxMail {
			return "", fmt.Errorf("a mail is longer than %d bytes", maxMail)
		}
	}
}

// peerUID asks the kernel who owns the other end of a local connection: TCP has no peer
// credentials, but every socket of this machine is listed with its owner.
func peerUID(procNet string, conn net.Conn) (uint32, error) {
	if procNet == "" {
		procNet = "/proc/net"
	}
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	local, ok2 := conn.LocalAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return 0, errors.New("not a TCP connection")
	}
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(procNet + "/" + table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		uid, found, err := findUID(file, hexAddr(peer, table == "tcp6"), hexAddr(local, table == "tcp6"))
		file.Close()
		if err != nil || found {
			return uid, err
		}
	}
	return 0, errors.New("the owner of the connection is not known")
}

func findUID(table io.Reader, local, remote string) (uint32, bool, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[1] != local || fields[2] != remote {
			continue
		}
		var uid uint32
		if _, err := fmt.Sscanf(fields[7], "%d", &uid); err != nil {
			return 0, false, fmt.Errorf("unexpected line in the table of connections: %w", err)
		}
		return uid, true, nil
	}
	return 0, false, lines.Err()
}

// hexAddr prints an address as the kernel's tables do: words of four bytes in host order.
func hexAddr(a *net.TCPAddr, six bool) string {
	ip := a.IP.To4()
	if six {
		ip = a.IP.To16()
	}
	var b strings.Builder
	for i := 0; i+4 <= len(ip); i += 4 {
		fmt.Fprintf(&b, "%02X%02X%02X%02X", ip[i+3], ip[i+2], ip[i+1], ip[i])
	}
	return fmt.Sprintf("%s:%04X", b.String(), a.Port)
}
