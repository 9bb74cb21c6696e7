package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"cambium/supervisor/monitfile"
)

// connect runs the connection tests of a service.
func (c *chain) connect(ctx context.Context, s *service) {
	var results []connected
	for i := range s.Tests {
		t := &s.Tests[i]
		if t.Kind != monitfile.Connection || ctx.Err() != nil || s.currentStatus().monitor == Off {
			continue
		}
		began := time.Now()
		err := probe(ctx, *t.Connection)
		results = append(results, connected{*t.Connection, err == nil, time.Since(began)})
		found, text := passed, "connection succeeded to "+where(*t.Connection)
		if err != nil {
			found, text = failed, fmt.Sprintf("failed, cannot connect to %s: %v", where(*t.Connection), err)
		}
		s.update(func(v *status) { v.connected = results })
		c.post(ctx, s, t, ruleOf(eventConnection, *t), found, text)
	}
}

func where(e monitfile.Endpoint) string {
	if e.Unix != "" {
		return "UNIX[" + e.Unix + "]"
	}
	return "INET[" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port)) + "]"
}

// probe connects to an endpoint. For HTTP it also sends a request and checks the status of the answer.
func probe(ctx context.Context, e monitfile.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	if e.UDP && e.Unix == "" {
		return probeUDP(ctx, e)
	}
	network, address := "tcp", net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
	if e.Unix != "" {
		network, address = "unix", e.Unix
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the answer is read, or does not matter
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if e.TLS {
		// As monit does, the test asks for an answer, not for a certificate of a certain authority.
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // #nosec G402
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = secure
	}
	if !e.HTTP {
		return nil
	}
	host := e.HostHeader
	if host == "" {
		host = address
	}
	if _, err := fmt.Fprintf(conn,
		"GET %s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\nUser-Agent: monit/%s\r\nConnection: close\r\n\r\n",
		e.Request, host, Version); err != nil {
		return err
	}
	return checkAnswer(conn)
}

// maxAnswer bounds the bytes read of an answer; monit reads half a kilobyte.
const maxAnswer = 4 << 10

// checkAnswer checks the status line of an HTTP answer.
func checkAnswer(answer io.Reader) error {
	line, err := bufio.NewReaderSize(answer, maxAnswer).ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("HTTP: the first line of the answer is longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return fmt.Errorf("HTTP: %w", err)
	}
	alone := io.MultiReader(bytes.NewReader(line), strings.NewReader("\r\n"))
	response, err := http.ReadResponse(bufio.NewReader(alone), nil)
	if err != nil {
		return fmt.Errorf("HTTP: %w", err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("HTTP status %d", response.StatusCode)
	}
	return nil
}

// udpWait bounds the wait for a refusal by a UDP port, because an open one may send nothing.
const udpWait = time.Second

// probeUDP sends a byte to the host's addresses in turn, until one does not refuse it. monit tries only the first.
func probeUDP(ctx context.Context, e monitfile.Endpoint) error {
	addresses, err := net.DefaultResolver.LookupHost(ctx, e.Host)
	for _, address := range addresses {
		if err = refusal(ctx, net.JoinHostPort(address, strconv.Itoa(e.Port))); err == nil {
			return nil
		}
	}
	return err
}

// refusal sends a byte to a UDP address and returns the error that comes back, or nil.
func refusal(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what it says does not matter
	deadline := time.Now().Add(udpWait)
	if latest, has := ctx.Deadline(); has && latest.Before(deadline) {
		deadline = latest
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
