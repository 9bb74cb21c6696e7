package natsbus

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"cambium/internal/secret"
)

const defaultPort = "4222"

func parseServers(urls []secret.URL) ([]*url.URL, error) {
	var servers []*url.URL
	for _, raw := range urls {
		u, err := url.Parse(raw.Reveal())
		if err != nil {
			// The parser's error quotes the address, which may hold a password.
			return nil, fmt.Errorf("nats: malformed address %s", raw)
		}
		if u.Scheme != "nats" || u.Hostname() == "" {
			return nil, fmt.Errorf("nats: not a NATS server's address: %s", raw)
		}
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), defaultPort)
		}
		servers = append(servers, &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host})
	}
	if len(servers) == 0 {
		return nil, errors.New("nats: no server address")
	}
	return servers, nil
}

// serverName matches the common name in the certificate of a BOSH deployment's NATS server. The same authority issues
// other certificates, such as the agents', and those must not be accepted as the server's.
var serverName = regexp.MustCompile(`^[A-Za-z0-9*-]*\.nats\.bosh-internal$`)

var errServerName = errors.New("server certificate is not named *.nats.bosh-internal")

func tlsConfig(id Identity) (*tls.Config, error) {
	pair, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.PrivateKey.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("nats: client certificate: %w", err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 ||
				!serverName.MatchString(state.PeerCertificates[0].Subject.CommonName) {
				return errServerName
			}
			return nil
		},
	}
	if strings.TrimSpace(id.CA) != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(id.CA)) {
			return nil, errors.New("nats: the CA's PEM contains no certificate")
		}
	}
	return config, nil
}

// validSubject rejects subjects that contain wildcards or would inject protocol lines. It is called for every request,
// so it makes one pass and allocates nothing.
func validSubject(s string) bool {
	if s == "" || len(s) > 1024 {
		return false
	}
	start := 0
	for i := 0; i <= len(s); i++ {
		switch {
		case i == len(s) || s[i] == '.':
			if i == start || i == start+1 && (s[start] == '*' || s[start] == '>') {
				return false
			}
			start = i + 1
		case s[i] <= ' ' || s[i] == 0x7f:
			return false
		}
	}
	return true
}
