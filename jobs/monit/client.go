// Package monit controls a stemcell's supervisor through monit's HTTP interface: it reads the state of services,
// starts, stops and unmonitors them, and restarts the daemon so that it reads its files again. It also receives the
// mails that monit sends as alerts. Everything specific to monit, old (5.2.5) or current (5.33), is in this package.
package monit

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"cambium/internal/oneline"
	"cambium/internal/retry"
	"cambium/internal/sockowner"
)

// DefaultURL is the URL of monit on all stemcells.
const DefaultURL = "http://127.0.0.1:2822"

// Limits of single requests. A status that takes longer than statusTimeout counts as no answer.
const (
	statusTimeout = 2 * time.Second
	actionTimeout = 5 * time.Second
	// actionBudget bounds the retries of an action while the daemon restarts or another action is running.
	actionBudget = 20 * time.Second
	maxStatus    = 8 << 20
)

// Client is a client of monit's HTTP interface. URL and UserFile are required.
type Client struct {
	// URL is the base URL, normally DefaultURL.
	URL string
	// UserFile contains "user:password". It is read for each request, because it may change at any boot.
	UserFile string
	// JobFiles is the glob pattern of the jobs' files, which name the pid files of services.
	JobFiles string
	// Daemon restarts monit for Reload.
	Daemon Daemon
	// Pause is the pause between two attempts of an action; a second if zero.
	Pause time.Duration
	// Owner is the user whose monit gets the password; 0 is root.
	Owner uint32
	// Sockets looks up the owners of connections.
	Sockets sockowner.Table
	// Taken receives a value when a request finds that another process has monit's port. Values are dropped if the
	// channel is full.
	Taken chan struct{}
}

// Daemon controls the monit process: systemd or runit.
type Daemon interface {
	// Kill sends SIGKILL to a service's main process, but not to the processes that it has started. On SIGTERM, monit
	// would first finish what it is waiting for, which can take as long as a start program.
	Kill(ctx context.Context, name string) error
	// Start makes sure that a service is running.
	Start(ctx context.Context, name string) error
}

// http returns a client without a proxy, because the interface is local. It keeps no connections, since monit closes
// them, and does not follow the redirect with which current versions answer an action.
func (c *Client) http() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:           c.dial,
			DisableKeepAlives:     true,
			ResponseHeaderTimeout: actionTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects only to the daemon, because any user can take its port while monit is down. Before the connection, the
// listener must not belong to another user. After it, the listener must be the owner's, and the other end of the
// connection must not belong to another user, who could have accepted the connection and then left the port to monit.
// The other end alone proves nothing, because a connection that was not accepted yet has no owner.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	listener, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("monit's address: %w", err)
	}
	if err := c.checkOwner(listener); err != nil && !errors.Is(err, sockowner.ErrUnknown) {
		return nil, c.named(listener, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, c.named(listener, err)
	}
	if err := errors.Join(c.checkOwner(listener), c.checkAccepted(conn)); err != nil {
		return nil, errors.Join(c.named(listener, err), conn.Close())
	}
	return conn, nil
}

// checkAccepted fails if another user has accepted the connection. If the owner is unknown, it succeeds: a connection
// that was not accepted yet may not be listed, and belongs to the listener.
func (c *Client) checkAccepted(conn net.Conn) error {
	uid, err := c.Sockets.OtherEnd(conn)
	if err == nil && uid != c.Owner {
		return fmt.Errorf(
			"a process of user %d accepted the connection to %s; it was not sent the password; end it", uid,
			conn.RemoteAddr())
	}
	return nil
}

func (c *Client) checkOwner(listener netip.AddrPort) error {
	uid, err := c.Sockets.Listener(listener)
	if err != nil {
		return fmt.Errorf("owner of the listener on %s: %w", listener, err)
	}
	if uid != c.Owner {
		return fmt.Errorf(
			"a process of user %d, not of user %d, listens on %s; it was not sent the password; end it", uid,
			c.Owner, listener)
	}
	return nil
}

// statusError is a failed answer with its reason.
type statusError struct {
	code   int
	reason string
}

func (e statusError) Error() string {
	text := fmt.Sprintf("monit answered %d %s", e.code, http.StatusText(e.code))
	if e.reason != "" {
		text += ": " + e.reason
	}
	return text
}

// Status returns the state of the services of the deployment's jobs. It makes one attempt.
func (c *Client) Status(ctx context.Context) (Status, error) { return c.StatusOf(ctx, group) }

// StatusOf returns the state of the services of a group, or of all if group is "".
func (c *Client) StatusOf(ctx context.Context, group string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, "/_status2?format=xml", nil)
	if err != nil {
		return Status{}, fmt.Errorf("monit status: %w", err)
	}
	status, err := parseStatus(bytes.NewReader(body), group)
	if err != nil {
		return Status{}, fmt.Errorf("monit status: %w", err)
	}
	return status, nil
}

// Text returns the status as text: the summary, or all details.
func (c *Client) Text(ctx context.Context, summary bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	path := "/_status?format=text"
	if summary {
		path += "&level=summary"
	}
	body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", fmt.Errorf("monit status: %w", err)
	}
	return colors.ReplaceAllString(string(body), ""), nil
}

// colors matches terminal colors, which current versions of monit always write.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Start asks monit to start a service and those on which it depends, without waiting.
func (c *Client) Start(ctx context.Context, service string) error {
	return c.act(ctx, "start", service)
}

// Stop asks monit to stop a service, without waiting.
func (c *Client) Stop(ctx context.Context, service string) error { return c.act(ctx, "stop", service) }

// Unmonitor makes monit ignore a service, whatever its state.
func (c *Client) Unmonitor(ctx context.Context, service string) error {
	return c.act(ctx, "unmonitor", service)
}

// act repeats an action until monit accepts it.
func (c *Client) act(ctx context.Context, action, service string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopBudget, fmt.Errorf("timed out after %v", stopBudget))
	defer cancel()
	since := time.Now()
	err := retry.Do(ctx, retry.Backoff{Min: c.pause()}, func(ctx context.Context) error {
		err := c.Act(ctx, action, service)
		if waits(action, err) {
			since = time.Now()
		}
		return lasting(err, time.Since(since))
	})
	if err != nil {
		return fmt.Errorf("monit %s %s: %w", action, service, err)
	}
	return nil
}

// waits reports whether an action must wait for another one, for as long as a stop may take, since the other one may be
// a start that takes minutes.
func waits(action string, err error) bool {
	status, is := errors.AsType[statusError](err)
	return is && status.code == http.StatusServiceUnavailable && (action == "stop" || action == "unmonitor")
}

// lasting marks an error as final if a retry would not help, as for an unknown service or a wrong password, or if the
// time is over.
func lasting(err error, tried time.Duration) error {
	switch status, is := errors.AsType[statusError](err); {
	case is && status.code < 500:
		return retry.Final(err)
	case err != nil && tried >= actionBudget:
		return retry.Final(fmt.Errorf("%w (timed out after %v)", err, actionBudget))
	}
	return err
}

// Act asks monit for an action on a service, once and without waiting.
func (c *Client) Act(ctx context.Context, action, service string) error {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	// A current monit requires the same token in the body and as a cookie (CSRF protection), with
	// any value. An old one ignores both.
	form := url.Values{"action": {action}, "securitytoken": {rand.Text()}}
	_, err := c.do(ctx, http.MethodPost, "/"+url.PathEscape(service), form)
	return err
}

func (c *Client) pause() time.Duration {
	if c.Pause == 0 {
		return time.Second
	}
	return c.Pause
}

func (c *Client) do(ctx context.Context, method, path string, form url.Values) ([]byte, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, body)
	if err != nil {
		return nil, err
	}
	user, password, err := c.credentials()
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(user, password)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Cookie", "securitytoken="+form.Get("securitytoken"))
	}
	resp, err := c.http().Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus+1))
	switch {
	case resp.StatusCode != http.StatusOK && (form == nil || resp.StatusCode != http.StatusFound):
		return nil, statusError{resp.StatusCode, reason(answer)}
	case err != nil:
		return nil, err
	case len(answer) > maxStatus:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxStatus)
	}
	return answer, nil
}

// reason extracts the reason from monit's error page: the text after the heading.
func reason(answer []byte) string {
	_, text, _ := strings.Cut(string(answer), "</h2>")
	text, _, _ = strings.Cut(text, "<")
	return oneline.Of(html.UnescapeString(strings.TrimSpace(text)))
}

// withoutURL removes method and URL from an error of net/http, since the caller names the action.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func (c *Client) credentials() (user, password string, err error) {
	data, err := os.ReadFile(c.UserFile)
	if err != nil {
		return "", "", fmt.Errorf("credentials: %w", err)
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(data)), ":")
	if !ok {
		return "", "", fmt.Errorf("credentials: %s does not contain user:password", c.UserFile)
	}
	return user, password, nil
}

// Limits of a reload. Each round kills monit, so a round is long enough for a slow machine to start it; upstream's has
// 10 seconds.
const (
	reloadRounds = 3
	reloadWait   = 30 * time.Second
)

// Reload restarts monit, so that it reads its files again. monit's own reload waits for whatever it is doing. Reload
// returns when the new monit answers. The supervised processes are not affected.
func (c *Client) Reload(ctx context.Context) error {
	before, err := c.Status(ctx)
	if err != nil {
		// Not running or not answering; then any incarnation is a new one.
		before = Status{}
	}
	// The incarnation is the second in which monit started: a restart within the same second could
	// not be recognized.
	if started := time.Unix(before.Incarnation, 0); before.Incarnation != 0 && time.Since(started) < time.Second {
		if err := retry.Sleep(ctx, time.Until(started.Add(time.Second))); err != nil {
			return fmt.Errorf("monit reload: %w", err)
		}
	}
	var failed error
	for range reloadRounds {
		failed = c.restart(ctx, before.Incarnation)
		if failed == nil || ctx.Err() != nil {
			break
		}
	}
	if failed != nil {
		return fmt.Errorf("monit reload: %w", failed)
	}
	return nil
}

func (c *Client) restart(ctx context.Context, before int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reloadWait, fmt.Errorf("monit did not restart within %v", reloadWait))
	defer cancel()
	// Killing what does not run fails; only the start must succeed.
	return c.start(ctx, before, c.Daemon.Kill(ctx, UnitName))
}

// start starts monit after it was killed, and returns when the new monit answers.
func (c *Client) start(ctx context.Context, before int64, killed error) error {
	if err := c.Daemon.Start(ctx, UnitName); err != nil {
		return errors.Join(err, killed)
	}
	// Only the HTTP interface reports whether a new monit answers.
	return retry.Do(
		ctx,
		retry.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond},
		func(ctx context.Context) error {
			now, err := c.Status(ctx)
			if err != nil {
				return err
			}
			if now.Incarnation == before {
				return errors.Join(errors.New("monit was not restarted: the old process still answers"), killed)
			}
			return nil
		},
	)
}
