package observe

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cambium/agent"
	"cambium/blobstore"
	"cambium/internal/command"
	"cambium/mbus/natsbus"
	"cambium/platform/network"
	"cambium/platform/network/neighbor"
	"cambium/platform/unit"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// Bus describes the connection to the Director.
type Bus struct {
	URLs []string `json:"urls"` // without passwords
	// IdentityErr reports an invalid URL or identity, with which no server can be contacted.
	IdentityErr string `json:"identity_error,omitempty"`
	// Listens is the address on which an HTTPS bus should listen. ListenErr is the error of a test connection.
	Listens   string   `json:"listens,omitempty"`
	ListenErr string   `json:"listen_error,omitempty"`
	Servers   []Server `json:"servers"`
}

// Server is the result of a test connection to one server.
type Server struct {
	Address   string   `json:"address"` // host:port of the settings
	Addresses []string `json:"addresses"`
	// Failed is the step of natsbus that failed, or "" if the agent could subscribe.
	Failed  natsbus.ProbeStep `json:"failed,omitempty"`
	Err     string            `json:"error,omitempty"`
	Timeout bool              `json:"timeout,omitempty"`
	// If the server should be in the subnet of a link by its address, but does not answer there, Silent is that subnet
	// and SilentOn the link.
	Silent   string `json:"silent_in,omitempty"`
	SilentOn string `json:"silent_on,omitempty"`
	// Password means that the URL in the settings has one.
	Password bool `json:"password,omitempty"`
	// The validity period of the server's certificate can reveal that this machine's clock is wrong.
	Name      string    `json:"name,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
}

func bus(ctx context.Context, e settings.Effective, timeout time.Duration) (found Bus) {
	for _, u := range e.Bus.URLs {
		found.URLs = append(found.URLs, u.String())
	}
	if len(e.Bus.URLs) == 0 {
		return found
	}
	first, err := url.Parse(e.Bus.URLs[0].Reveal())
	if err != nil {
		found.IdentityErr = "bus URL " + e.Bus.URLs[0].String() + " is not valid"
		return found
	}
	if first.Scheme == "https" {
		found.Listens = first.Host
		conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", first.Port()))
		if err != nil {
			found.ListenErr = err.Error()
			return found
		}
		_ = conn.Close() // nothing was written
		return found
	}
	probed, err := natsbus.Probe(ctx, e.Settings.AgentID, agent.NATSIdentity(e.Bus), timeout)
	if err != nil {
		found.IdentityErr = err.Error()
		return found
	}
	for _, p := range probed {
		s := Server{Address: p.Server, Failed: p.Failed, Password: p.Password}
		for _, a := range p.Addresses {
			s.Addresses = append(s.Addresses, a.Unmap().String())
		}
		if p.Err != nil {
			s.Err = p.Err.Error()
			s.Timeout = p.Timeout
		}
		if p.Certificate != nil {
			s.Name, s.NotBefore, s.NotAfter = p.Certificate.Subject.CommonName, p.Certificate.NotBefore, p.Certificate.NotAfter
		}
		found.Servers = append(found.Servers, s)
	}
	return found
}

// askNeighbors finds the servers that did not answer on TCP, that should be on a link of this machine by their address,
// and that do not answer on that link either.
func (m *Facts) askNeighbors(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, min(gatewayTimeout, timeout))
	defer cancel()
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := range m.Bus.Servers {
		if s := &m.Bus.Servers[i]; s.Failed == natsbus.ProbeTCP {
			asked.Go(func() { s.Silent, s.SilentOn = silent(ctx, m.Network.State, s.Addresses) })
		}
	}
}

// silent returns the subnet and the link in which one of the addresses should be, if none of them answers there.
func silent(ctx context.Context, have network.State, addresses []string) (subnet, link string) {
	for _, text := range addresses {
		ip, err := netip.ParseAddr(text)
		for _, l := range have.NICs() {
			prefix, direct := l.Subnet(ip)
			if err != nil || !direct {
				continue
			}
			if len(neighbor.Answering(ctx, have, []neighbor.Gateway{{Link: l.Name, IP: ip}})) > 0 {
				return "", ""
			}
			subnet, link = prefix.String(), l.Name
		}
	}
	return subnet, link
}

// Blobstore is the result of requesting a blob that does not exist.
type Blobstore struct {
	Provider string `json:"provider,omitempty"`
	// Asked is false if the blobstore cannot be asked: local directories, and blobstores with signed URLs.
	Asked   bool   `json:"asked,omitempty"`
	Err     string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // it rejected the user or password of the settings
}

func askBlobstore(ctx context.Context, e settings.Effective, timeout time.Duration) Blobstore {
	found := Blobstore{Provider: e.Blobstore.Provider}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	found.Asked, err = blobstore.Probe(ctx, blobstore.Options{Provider: e.Blobstore.Provider,
		Options: e.Blobstore.Options, Log: quiet()})
	if err != nil {
		found.Err, found.Refused = err.Error(), errors.Is(err, blobstore.ErrCredentials)
	}
	return found
}

// NameServer is a DNS server of the settings.
type NameServer struct {
	OfNetwork
	Answers bool `json:"answers"`
}

// rootServers asks for the name servers of the root, which every DNS server answers in some way.
var rootServers = []byte{0xca, 0xfe, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}

// askNameServers asks each server. Any answer counts, even a refusal.
func askNameServers(ctx context.Context, servers []OfNetwork, timeout time.Duration) []NameServer {
	found := make([]NameServer, len(servers))
	var asked sync.WaitGroup
	for i, s := range servers {
		asked.Go(func() { found[i] = NameServer{s, answersDNS(ctx, s.IP, timeout)} })
	}
	asked.Wait()
	return found
}

// queries is the number of packets sent for one question, since one may be lost.
const queries = 3

func answersDNS(ctx context.Context, server string, timeout time.Duration) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(server, "53"))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	answer := make([]byte, 512)
	for range queries {
		_ = conn.SetDeadline(time.Now().Add(timeout / queries)) // a socket has one
		if _, err := conn.Write(rootServers); err != nil {
			continue
		}
		if n, err := conn.Read(answer); err == nil && n >= 2 && bytes.Equal(answer[:2], rootServers[:2]) {
			return true
		}
	}
	return false
}

// Clock compares this machine's clock with those of other machines.
type Clock struct {
	// Synchronized means that, according to the kernel, a time daemon keeps the clock.
	Synchronized bool     `json:"synchronized"`
	Samples      []Sample `json:"samples"`
	// Time describes the time daemon; nil if the settings name no time servers.
	Time *TimeDaemon `json:"time_daemon,omitempty"`
	// Moved is the amount by which the clock was set since the agent started; positive if it was set forward.
	Moved time.Duration `json:"moved_ns,omitempty"`
}

// TimeDaemon is the daemon that synchronizes the clock.
type TimeDaemon struct {
	Servers []string `json:"servers"`        // from the settings
	Unit    string   `json:"unit,omitempty"` // the active unit, or ""
	// Sources is the number of servers that the daemon knows, and Reachable how many of them have answered lately; -1
	// if the daemon does not say.
	Sources   int `json:"sources"`
	Reachable int `json:"reachable"`
}

// timeUnits lists the units of time daemons.
var timeUnits = []string{"chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntpsec.service",
	"ntp.service", "ntpd.service"}

// timeDaemon finds the daemon. A container uses its host's clock and needs none.
func timeDaemon(ctx context.Context, servers []string) *TimeDaemon {
	if _, err := os.Stat("/run/systemd/container"); len(servers) == 0 || err == nil || !unit.Booted("/") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	found := &TimeDaemon{Servers: servers, Sources: -1, Reachable: -1}
	for _, name := range timeUnits {
		if s, known := unitState(ctx, name); known && s.Active == "active" {
			found.Unit = name
			break
		}
	}
	if strings.HasPrefix(found.Unit, "chrony") {
		if r, err := command.Run(ctx, command.Cmd{Name: "chronyc", Args: []string{"-n", "-c", "sources"}}); err == nil {
			found.Sources, found.Reachable = chronySources(string(r.Stdout))
		}
	}
	return found
}

// chronySources parses the output of 'chronyc -c sources'. Each line is a source; its sixth field has the last eight
// polls in octal.
func chronySources(text string) (sources, reachable int) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ",")
		if len(fields) < 6 {
			continue
		}
		sources++
		if fields[5] != "0" {
			reachable++
		}
	}
	return sources, reachable
}

func kernelClock() Clock {
	var state unix.Timex
	_, err := unix.Adjtimex(&state)
	return Clock{Synchronized: err == nil && state.Status&unix.STA_UNSYNC == 0}
}

// Sample compares the clock of another machine with this one's.
type Sample struct {
	From string `json:"from"` // scheme and host
	// Offset is this machine's time minus the other's: positive if this machine's clock is ahead.
	Offset time.Duration `json:"offset_ns"`
	Err    string        `json:"error,omitempty"`
}

// clock asks the blobstore and the metadata services for the time, which is in all HTTP answers, even refusals.
func clock(ctx context.Context, config agentjson.Config, e settings.Effective, timeout time.Duration) (found Clock) {
	found = kernelClock()
	found.Time = timeDaemon(ctx, e.NTP)
	var places []string
	for _, s := range config.Infrastructure.Settings.Sources {
		places = append(places, s.URI.Reveal())
	}
	var options struct {
		Endpoint string `json:"endpoint"`
	}
	if json.Unmarshal(e.Blobstore.Options.Reveal(), &options) == nil {
		places = append(places, options.Endpoint)
	}
	seen := map[string]bool{}
	var origins []string
	for _, place := range places {
		u, err := url.Parse(place)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || seen[u.Host] {
			continue
		}
		seen[u.Host] = true
		origins = append(origins, u.Scheme+"://"+u.Host)
	}
	found.Samples = make([]Sample, len(origins))
	var all sync.WaitGroup
	for i, origin := range origins {
		all.Go(func() { found.Samples[i] = sample(ctx, origin, timeout) })
	}
	all.Wait()
	return found
}

func sample(ctx context.Context, origin string, timeout time.Duration) Sample {
	found := Sample{From: origin}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, origin+"/", nil)
	if err != nil {
		found.Err = err.Error()
		return found
	}
	// The answer is not trusted, and nothing secret is asked: a blobstore's authority is the deployment's own, and by a
	// clock that is wrong no certificate is valid.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		found.Err = err.Error()
		return found
	}
	_ = answer.Body.Close() // of a HEAD request there is none
	said, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		found.Err = "the response has no Date header"
		return found
	}
	found.Offset = time.Since(said).Round(time.Second)
	return found
}
