package action

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"cambium/internal/watch"
	"cambium/settings"
)

// SSHUsers creates and removes the temporary accounts of `bosh ssh`.
type SSHUsers interface {
	// Create creates an account that may log in with the key. If it created the account before, it replaces the key. It
	// fails for an invalid name, and for the name of any other account.
	Create(ctx context.Context, name, publicKey string) error
	// Remove deletes all temporary accounts for which match returns true, with their homes.
	Remove(ctx context.Context, match func(name string) bool) error
}

// SSH holds the dependencies of the ssh action.
type SSH struct {
	Users SSHUsers
	// HostKey returns the key for the caller's known hosts; see AwaitHostKey.
	HostKey  func(ctx context.Context) (string, error)
	Networks Networks

	mu sync.Mutex // one change of the user database at a time
}

// sshParams is the second argument of ssh: user and key for setup, a pattern for cleanup.
type sshParams struct {
	User      string `json:"user"`
	PublicKey string `json:"public_key"`
	UserRegex string `json:"user_regex"`
}

// sshResult is the result of ssh.
type sshResult struct {
	Command       string `json:"command"`
	Status        string `json:"status"`
	IP            string `json:"ip,omitempty"`
	HostPublicKey string `json:"host_public_key,omitempty"`
}

// userPrefix is the prefix of the names that Directors and the CLI choose. cleanup removes no other accounts.
const userPrefix = "bosh_"

func (s *SSH) run(ctx context.Context, command string, p sshParams) (sshResult, error) {
	switch command {
	case "setup":
		return s.setup(ctx, p)
	case "cleanup":
		return s.cleanup(ctx, p)
	}
	return sshResult{}, errors.New("ssh: unknown command: expected setup or cleanup")
}

func (s *SSH) setup(ctx context.Context, p sshParams) (sshResult, error) {
	key := strings.TrimSpace(p.PublicKey)
	if key == "" || strings.ContainsAny(key, "\n\r\x00") {
		return sshResult{}, errors.New("ssh setup: the public key must be a single line")
	}
	// Before the account is created: without these the caller cannot log in.
	hostKey, err := s.HostKey(ctx)
	if err != nil {
		return sshResult{}, err
	}
	ip, err := s.address()
	if err != nil {
		return sshResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Users.Create(ctx, p.User, key); err != nil {
		return sshResult{}, fmt.Errorf("ssh setup: %w", err)
	}
	return sshResult{Command: "setup", Status: "success", IP: ip, HostPublicKey: hostKey}, nil
}

func (s *SSH) cleanup(ctx context.Context, p sshParams) (sshResult, error) {
	if p.UserRegex == "" {
		return sshResult{}, errors.New("ssh cleanup: user_regex is missing")
	}
	pattern, err := regexp.Compile(p.UserRegex)
	if err != nil {
		return sshResult{}, fmt.Errorf("ssh cleanup: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.Users.Remove(ctx, func(name string) bool {
		return strings.HasPrefix(name, userPrefix) && pattern.MatchString(name)
	})
	if err != nil {
		return sshResult{}, fmt.Errorf("ssh cleanup: %w", err)
	}
	return sshResult{Command: "cleanup", Status: "success"}, nil
}

// hostKeyWait bounds the wait for the machine's first host key. Callers wait longer than that for an answer.
const hostKeyWait = 30 * time.Second

// AwaitHostKey returns the public host key of the sshd whose files are below root. It prefers the RSA key, since older
// clients support no other. A machine creates its keys while it boots, so AwaitHostKey waits for the first one.
func AwaitHostKey(ctx context.Context, root string) (key string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hostKeyWait, fmt.Errorf("none after %v", hostKeyWait))
	defer cancel()
	dir := filepath.Join(root, "etc/ssh")
	err = watch.Until(ctx, filepath.Join(dir, "key"), func() (found bool, err error) {
		key, err = readHostKey(dir)
		return key != "", err
	})
	if err != nil {
		return "", fmt.Errorf("ssh setup: the machine has no ssh host key: %w", err)
	}
	return key, nil
}

// readHostKey returns "" if there is no key yet.
func readHostKey(dir string) (string, error) {
	for _, kind := range []string{"rsa", "ed25519", "ecdsa"} {
		data, err := os.ReadFile(filepath.Join(dir, "ssh_host_"+kind+"_key.pub"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if key := strings.TrimSpace(string(data)); key != "" {
			return key, nil
		}
	}
	return "", nil
}

// address returns the IP address for the caller to connect to. A network that is a default comes first, VIPs come last.
func (s *SSH) address() (string, error) {
	networks := s.Networks()
	names := slices.Sorted(maps.Keys(networks))
	for _, fits := range []func(settings.Network) bool{
		func(n settings.Network) bool { return len(n.Default) > 0 },
		func(n settings.Network) bool { return !n.VIP() },
		func(settings.Network) bool { return true },
	} {
		for _, name := range names {
			if n := networks[name]; n.IP != "" && fits(n) {
				return n.IP, nil
			}
		}
	}
	return "", errors.New("ssh setup: the machine has no address")
}
