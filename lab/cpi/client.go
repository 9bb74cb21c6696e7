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

// Client reaches a holder.
type Client struct {
	Dir  string // where the IaaS is
	Name string
	// Start starts a holder when there is none; nil does not.
	Start func(ctx context.Context) error

	// remote connects to a holder on another machine, which is at.
	remote func(ctx context.Context, network, address string) (net.Conn, error)
	at     string
}

// NewClient is one that starts a holder when there is none: this program once more, which calls
// HoldMain when its arguments are "hold", directory and name.
func NewClient(dir, name string) Client {
	return Client{Dir: dir, Name: name, Start: func(ctx context.Context) error {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		return startHolder(ctx, dir, name, own, "hold", dir, name)
	}}
}

// errNoHolder is returned when no process holds the IaaS.
var errNoHolder = errors.New("no process holds the IaaS")

// Exists reports whether there is anything of the IaaS, held or not.
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

// Do has the holder answer a request.
func (c Client) Do(ctx context.Context, e Envelope) (reply Reply) {
	c.Deliver(ctx, e, func(r Reply) error {
		reply = r
		return nil
	})
	return reply
}

// Deliver has the holder answer a request and passes the reply on. If that fails, or this process ends before it is
// done, the holder removes what it has made. The image of a create_stemcell is opened here: its path is one of this
// machine.
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

// startAttempts limits the attempts to start a holder, since a holder may end just before it is asked.
const startAttempts = 5

// confirmTimeout bounds the call that tells the holder that a reply has been passed on.
const confirmTimeout = 10 * time.Second

// try asks a holder and passes its reply on. It returns an error if there is no reply.
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

// noHolder tells from the error of a connection that there is nothing that listens.
func noHolder(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// List asks for what there is, ok is false if no process holds the IaaS.
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

// Enter keeps the holder, starting one if there is none, until the returned function is called,
// and returns the file of its network namespace.
func (c Client) Enter(ctx context.Context) (namespace string, release func(), err error) {
	for attempt := 0; attempt <= startAttempts; attempt++ {
		namespace, release, err = c.stay(ctx)
		if !errors.Is(err, errNoHolder) || c.Start == nil {
			return namespace, release, err
		}
		if err := c.Start(ctx); err != nil {
			return "", nil, err
		}
	}
	return "", nil, err
}

func (c Client) stay(ctx context.Context) (string, func(), error) {
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

// ConnectHost has a holder that runs already make or remove the host's link.
func (c Client) ConnectHost(ctx context.Context) error { return c.notify(ctx, "/host-route") }

// notify makes a running holder read what has been written for it. If there is none, the next one
// reads it at its start.
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

// startTimeout bounds the wait until a holder has removed the remains of its predecessor and listens.
const startTimeout = 2 * time.Minute

// readyLine is the line that a holder prints when it is ready to answer.
const readyLine = "ready"

// startHolder runs program with arguments as a process of its own that outlives this one, and
// waits until it answers. One that finds another holder is not an error.
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
