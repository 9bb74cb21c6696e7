package cpi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cambium/lab/iaas"
)

// Client sends requests to a holder.
type Client struct {
	Dir  string // directory of the IaaS
	Name string
	// Start starts a holder if none runs; may be nil.
	Start func(ctx context.Context) error

	// remote connects to a holder on another machine, at the address at.
	remote func(ctx context.Context, network, address string) (net.Conn, error)
	at     string
}

// NewClient returns a client that starts a holder if none runs. It runs this program with the arguments "hold", dir and
// name, with which the program must call HoldMain.
func NewClient(dir, name string) Client {
	return Client{Dir: dir, Name: name, Start: func(ctx context.Context) error {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		return startHolder(ctx, dir, name, own, "hold", dir, name)
	}}
}

// errNoHolder means that no process holds the IaaS.
var errNoHolder = errors.New("no process holds the IaaS")

// Exists reports whether the IaaS exists, held or not.
func (c Client) Exists() bool {
	if c.remote != nil {
		return true
	}
	_, err := os.Stat(iaas.Directory(c.Dir, c.Name))
	return err == nil
}

func (c Client) http() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket(c.Dir, c.Name))
	}
	if c.remote != nil {
		dial = c.remote
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// Do sends a request and returns the reply.
func (c Client) Do(ctx context.Context, e Envelope) (reply Reply) {
	c.Deliver(ctx, e, func(r Reply) error {
		reply = r
		return nil
	})
	return reply
}

// Deliver sends a request and passes on the reply. If passing it on fails, or this process ends before, the holder
// removes what it has created. Deliver opens the image of a create_stemcell, because its path is on this machine.
func (c Client) Deliver(ctx context.Context, e Envelope, pass func(Reply) error) {
	if !c.Exists() {
		if reply, ok := absent(e.Request); ok {
			_ = pass(reply)
			return
		}
	}
	if methods[e.Request.Method].undo != nil {
		e.Delivery = rand.Text()
	}
	err := c.try(ctx, e, pass)
	for attempt := 0; errors.Is(err, errNoHolder) && c.Start != nil && attempt < startAttempts; attempt++ {
		if err = c.Start(ctx); err == nil {
			err = c.try(ctx, e, pass)
		}
	}
	if err != nil {
		_ = pass(Failure(err))
	}
}

// startAttempts limits the attempts to start a holder, since one may end just before it is asked.
const startAttempts = 5

// confirmTimeout bounds the confirmation that a reply was passed on.
const confirmTimeout = 10 * time.Second

// try sends a request and passes on the reply. It returns an error if there is no reply.
func (c Client) try(ctx context.Context, e Envelope, pass func(Reply) error) error {
	response, err := c.ask(ctx, e)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusServiceUnavailable {
		return errNoHolder // it is just ending
	}
	var reply Reply
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		return fmt.Errorf("the holder of the IaaS ended during the call: %w", err)
	}
	if pass(reply) == nil && e.Delivery != "" {
		// Also if this process is told to end now: the caller has the reply.
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
		defer cancel()
		_ = c.notify(within, deliveredPath+e.Delivery) // there is no one to tell
	}
	return nil
}

// ask sends a request to a holder.
func (c Client) ask(ctx context.Context, e Envelope) (*http.Response, error) {
	head, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	var body io.Reader = bytes.NewReader(append(head, '\n'))
	if e.Request.Method == "create_stemcell" {
		path := ""
		if err := e.Request.argument(0, "image", &path); err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("stemcell image: %w", err)
		}
		defer func() { _ = f.Close() }()
		body = io.MultiReader(body, f)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://holder/cpi", body)
	if err != nil {
		return nil, err
	}
	response, err := c.http().Do(r)
	if c.remote != nil && err != nil {
		return nil, fmt.Errorf("the holder of the IaaS does not answer at %s: %w; "+
			"start it on its machine with: lab enter -- true", c.at, errors.Unwrap(err))
	}
	if noHolder(err) {
		return nil, errNoHolder
	}
	if err != nil {
		return nil, fmt.Errorf("the holder of the IaaS in %s: %w", iaas.Directory(c.Dir, c.Name), err)
	}
	return response, nil
}

// noHolder reports whether the error means that no holder listens.
func noHolder(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// List returns the objects of the IaaS. ok is false if no process holds it.
func (c Client) List(ctx context.Context) (l iaas.Listing, ok bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://holder/state", nil)
	if err != nil {
		return l, false, err
	}
	response, err := c.http().Do(r)
	if noHolder(err) {
		return l, false, nil
	}
	if err != nil {
		return l, false, err
	}
	defer func() { _ = response.Body.Close() }()
	return l, true, json.NewDecoder(response.Body).Decode(&l)
}

// Enter starts a holder if none runs, and keeps it running until release is called. It returns the path of the holder's
// network namespace.
func (c Client) Enter(ctx context.Context) (namespace string, release func(), err error) {
	for attempt := 0; attempt <= startAttempts; attempt++ {
		namespace, release, err = c.keepHolder(ctx)
		if !errors.Is(err, errNoHolder) || c.Start == nil {
			return namespace, release, err
		}
		if err := c.Start(ctx); err != nil {
			return "", nil, err
		}
	}
	return "", nil, err
}

func (c Client) keepHolder(ctx context.Context) (string, func(), error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://holder/stay", nil)
	if err != nil {
		return "", nil, err
	}
	response, err := c.http().Do(r)
	if noHolder(err) {
		return "", nil, errNoHolder
	}
	if err != nil {
		return "", nil, err
	}
	release := func() { _ = response.Body.Close() }
	if response.StatusCode != http.StatusOK {
		release()
		return "", nil, errNoHolder // it is just ending
	}
	var namespace string
	if err := json.NewDecoder(response.Body).Decode(&namespace); err != nil {
		release()
		return "", nil, err
	}
	return namespace, release, nil
}

// ConnectHost makes a running holder create or remove the link to the host.
func (c Client) ConnectHost(ctx context.Context) error { return c.notify(ctx, "/host-route") }

// notify makes a running holder read its configuration again. Another one reads it when it starts.
func (c Client) notify(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://holder"+path, nil)
	if err != nil {
		return err
	}
	response, err := c.http().Do(r)
	if noHolder(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(response.Body, maxMessage))
		return fmt.Errorf("the holder: %s", strings.TrimSpace(string(message)))
	}
	return nil
}

// startTimeout bounds the wait for a holder, which first removes the remains of an earlier one.
const startTimeout = 2 * time.Minute

// readyLine is printed by a holder when it can answer.
const readyLine = "ready"

// startHolder starts a holder in a process that outlives this one, and waits until it answers. It is not an error if
// another holder runs.
func startHolder(ctx context.Context, dir, name string, argv ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("machines, mounts and loop devices need root: run this as root, or name a holder with lab.host")
	}
	own := iaas.Directory(dir, name)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return fmt.Errorf("the directory of the IaaS: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(own, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a holder that ends has just removed the directory; the caller tries again
	}
	if err != nil {
		return fmt.Errorf("the log of the IaaS: %w", err)
	}
	defer func() { _ = log.Close() }()
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	holder := exec.Command(argv[0], argv[1:]...)
	// Nothing of the caller's environment: it may hold secrets, and the holder outlives it.
	holder.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	holder.Dir, holder.Stdout, holder.Stderr = "/", writer, log
	holder.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = holder.Start()
	_ = writer.Close()
	if err != nil {
		return fmt.Errorf("start the holder of the IaaS: %w", err)
	}
	_ = reader.SetReadDeadline(time.Now().Add(startTimeout))
	defer context.AfterFunc(ctx, func() { _ = reader.SetReadDeadline(time.Now()) })()
	line, err := bufio.NewReader(reader).ReadString('\n')
	switch {
	case strings.TrimSpace(line) == readyLine:
		return holder.Process.Release()
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = holder.Process.Kill()
		_ = holder.Wait()
		return errors.New("the holder of the IaaS did not start; see its log")
	}
	_ = holder.Wait()
	if message := strings.TrimSpace(line); message != "" && message != iaas.ErrHeld.Error() {
		return fmt.Errorf("the holder of the IaaS: %s", message)
	}
	// Another one was faster, or is just ending: a moment later it is one or the other.
	select {
	case <-time.After(heldPause):
	case <-ctx.Done():
	}
	return ctx.Err()
}

const heldPause = 300 * time.Millisecond
