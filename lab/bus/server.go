package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"cambium/internal/testca"
	"cambium/lab/netns"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options configures the server.
type Options struct {
	Dir  string // for its configuration and certificates
	Net  netns.Namespace
	Host string
	Port int
	CA   *testca.CA
	// Program is the path of a nats-server binary that replaces the built-in server.
	Program string
}

// Server is a running NATS server.
type Server struct {
	o Options

	mu       sync.Mutex
	agents   map[string]bool // by common name
	embedded *server.Server
	program  *exec.Cmd
	exited   chan struct{}
}

// Start starts the server and returns when it accepts connections.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{o: o, agents: map[string]bool{}}
	pair, err := o.CA.Server(o.Host)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{s.files().certificate: pair.Certificate, s.files().key: pair.PrivateKey,
		s.files().ca: o.CA.PEM} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return nil, err
		}
	}
	if err := s.write(); err != nil {
		return nil, err
	}
	if o.Program != "" {
		err = s.execute(ctx)
	} else {
		err = s.embed()
	}
	if err != nil {
		return nil, fmt.Errorf("nats-server: %w", err)
	}
	return s, nil
}

func (s *Server) files() files {
	in := func(name string) string { return filepath.Join(s.o.Dir, name) }
	return files{certificate: in("nats.crt"), key: in("nats.key"), ca: in("ca.crt")}
}

func (s *Server) configPath() string { return filepath.Join(s.o.Dir, "nats.conf") }

func (s *Server) write() error {
	data, err := config(s.o.Host, s.o.Port, s.files(), s.agents)
	if err != nil {
		return err
	}
	return os.WriteFile(s.configPath(), data, 0o600)
}

func (s *Server) options() (*server.Options, error) {
	options, err := server.ProcessConfigFile(s.configPath())
	if err != nil {
		return nil, err
	}
	options.NoLog, options.NoSigs = true, true
	return options, nil
}

func (s *Server) embed() error {
	options, err := s.options()
	if err != nil {
		return err
	}
	if s.embedded, err = server.NewServer(options); err != nil {
		return err
	}
	// The listening socket is opened on the calling thread, hence in the lab's namespace.
	err = s.o.Net.Do(func() error {
		s.embedded.Start()
		return nil
	})
	if err == nil && !s.embedded.ReadyForConnections(10*time.Second) {
		err = errors.New("not ready after 10 s")
	}
	return err
}

func (s *Server) execute(ctx context.Context) error {
	log, err := os.Create(filepath.Join(s.o.Dir, "nats.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s.program = exec.Command("nsenter", "--net="+s.o.Net.Path(), s.o.Program, "-c", s.configPath())
	s.program.Stdout, s.program.Stderr = log, log
	s.program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.program.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func() {
		_ = s.program.Wait()
		close(s.exited)
	}()
	return s.reachable(ctx)
}

// reachable polls until the program listens, because it does not report that.
func (s *Server) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := s.o.Net.DialContext(ctx, "tcp", s.address())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-s.exited:
			return errors.New("program ended; see nats.log")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Listens reports whether a client has subscribed to the subject. If the server is a separate program, it always
// returns true. It waits while Bounce runs.
func (s *Server) Listens(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.embedded == nil {
		return true
	}
	found, err := s.embedded.Subsz(&server.SubszOptions{Subscriptions: true, Test: subject, Limit: 1})
	return err != nil || found.Total > 0
}

// address returns the server's address for the machines.
func (s *Server) address() string { return net.JoinHostPort(s.o.Host, strconv.Itoa(s.o.Port)) }

// URL returns the server's URL for the settings of an agent.
func (s *Server) URL() string { return "nats://" + s.address() }

// Admit issues a certificate for an agent and grants it access, as nats-sync does when the Director has recorded the
// VM. The common name is from testca.AgentName or testca.BootstrapName.
func (s *Server) Admit(commonName string) (testca.Pair, error) {
	pair, err := s.o.CA.Client(commonName)
	if err != nil {
		return pair, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agents[commonName] = true
	return pair, s.reload()
}

// Expel revokes access, as when permanent credentials replace the first ones.
func (s *Server) Expel(commonName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.agents, commonName)
	return s.reload()
}

// Forget removes the certificates of a deleted agent from the configuration at the next reload, so that reloads do not
// become slower with each machine.
func (s *Server) Forget(agentID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.agents, testca.AgentName(agentID))
	delete(s.agents, testca.BootstrapName(agentID))
}

func (s *Server) reload() error {
	if err := s.write(); err != nil {
		return err
	}
	if s.program != nil {
		return s.program.Process.Signal(syscall.SIGHUP)
	}
	options, err := s.options()
	if err != nil {
		return err
	}
	return s.embedded.ReloadOptions(options)
}

// reconnectWait is the Director's pause between two attempts to reconnect.
const reconnectWait = 500 * time.Millisecond

// Connect returns a client with the given common name: the Director's, the Health Monitor's, or an agent's.
func (s *Server) Connect(commonName string) (*nats.Conn, error) {
	pair, err := s.o.CA.Client(commonName)
	if err != nil {
		return nil, err
	}
	cert, err := pair.TLS()
	if err != nil {
		return nil, err
	}
	return nats.Connect("tls://"+s.address(), nats.Name(commonName), nats.SetCustomDialer(s.o.Net), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0),
		nats.Secure(&tls.Config{RootCAs: s.o.CA.Pool(), Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
}

// Stop ends the server and closes its connections. Restart starts it again.
func (s *Server) Stop() {
	if s.program != nil {
		_ = s.program.Process.Signal(syscall.SIGTERM)
		<-s.exited
		return
	}
	s.embedded.Shutdown()
	s.embedded.WaitForShutdown()
}

// Bounce stops the server for a while and starts it again with the same users. It returns when the server was stopped.
// That may be long after the call began, because it waits for calls of Admit and Expel.
func (s *Server) Bounce(ctx context.Context, gone time.Duration) (stopped time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stopped = time.Now()
	s.Stop()
	select {
	case <-ctx.Done():
	case <-time.After(gone):
	}
	return stopped, s.Restart(context.WithoutCancel(ctx))
}

// Restart starts a stopped server with the same users.
func (s *Server) Restart(ctx context.Context) error {
	if s.program != nil {
		return s.execute(ctx)
	}
	return s.embed()
}
