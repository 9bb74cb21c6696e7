//go:build bench

package busbench

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// wire is a connection to the server with nothing in between: one goroutine reads what there
// is, answers all of it and writes once. The asking side of a comparison should cost as little
// as possible, since whatever it costs hides a part of the difference.
type wire struct {
	conn *tls.Conn
	in   *bufio.Reader
	out  []byte
}

func dial(address string, config *tls.Config, subject string) (*wire, error) {
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	// The server's greeting is one line before TLS begins.
	one := make([]byte, 1)
	for one[0] != '\n' {
		if _, err := raw.Read(one); err != nil {
			return nil, err
		}
	}
	w := &wire{conn: tls.Client(raw, config)}
	w.in = bufio.NewReaderSize(w.conn, 64<<10)
	w.out = fmt.Appendf(nil, "CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":true}\r\nSUB %s 1\r\nPING\r\n", subject)
	if err := w.flush(); err != nil {
		return nil, err
	}
	for {
		line, err := w.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line == "PONG\r\n" {
			return w, nil
		}
	}
}

func (w *wire) publish(subject string, data []byte) {
	w.out = append(w.out, "PUB "...)
	w.out = append(w.out, subject...)
	w.out = append(w.out, ' ')
	w.out = strconv.AppendInt(w.out, int64(len(data)), 10)
	w.out = append(w.out, "\r\n"...)
	w.out = append(w.out, data...)
	w.out = append(w.out, "\r\n"...)
}

func (w *wire) flush() error {
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// next returns a message; both slices are valid until the following call. What was published
// is sent before it waits.
func (w *wire) next() (subject, data []byte, err error) {
	for {
		if w.in.Buffered() == 0 && len(w.out) > 0 {
			if err := w.flush(); err != nil {
				return nil, nil, err
			}
		}
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return nil, nil, err
		}
		switch {
		case bytes.HasPrefix(line, []byte("MSG ")):
			fields := bytes.Fields(line)
			subject = bytes.Clone(fields[1])
			n, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err != nil {
				return nil, nil, err
			}
			if data, err = w.in.Peek(n + 2); err != nil {
				return nil, nil, err
			}
			_, err = w.in.Discard(n + 2)
			return subject, data[:n], err
		case bytes.HasPrefix(line, []byte("PING")):
			w.out = append(w.out, "PONG\r\n"...)
		case bytes.HasPrefix(line, []byte("-ERR")):
			return nil, nil, errors.New(string(line))
		}
	}
}
