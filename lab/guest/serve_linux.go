package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// environment of all programs.
var environment = []string{"HOME=/root", "LANG=C.UTF-8",
	"PATH=/var/vcap/bosh/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// Serve serves the host until the port is closed.
func Serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	return ServeOn(port)
}

// ServeOn serves requests from a connection.
func ServeOn(port io.ReadWriter) error {
	s := &server{out: &Writer{W: port}, running: map[uint32]*process{}}
	if err := s.out.Frame(Hello, 0, nil); err != nil {
		return err
	}
	for {
		f, err := Read(port)
		if err != nil {
			return err
		}
		s.handle(f)
	}
}

// openPort waits for the port, whose driver may still be loading.
func openPort() (*os.File, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, path := range names {
			if name, _ := os.ReadFile(path); strings.TrimSpace(string(name)) == Port {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no serial port is named %s", Port)
}

type server struct {
	out *Writer

	mu      sync.Mutex
	running map[uint32]*process
}

// process is a running request. Its input is queued, so that a program that does not read does not block others.
type process struct {
	mu       sync.Mutex
	ready    *sync.Cond
	queue    []byte
	ended    bool // no more input
	killed   bool
	pid      int
	terminal *os.File
}

func (p *process) Read(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.ended {
		p.ready.Wait()
	}
	if len(p.queue) == 0 {
		return 0, io.EOF
	}
	n := copy(data, p.queue)
	p.queue = p.queue[n:]
	return n, nil
}

func (p *process) feed(data []byte, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, data...)
	p.ended = p.ended || last
	p.ready.Broadcast()
}

func (s *server) handle(f Frame) {
	if f.Kind == Run {
		var r Request
		if err := json.Unmarshal(f.Data, &r); err != nil {
			_ = s.out.JSON(Exit, f.ID, Result{Error: err.Error()})
			return
		}
		p := &process{}
		p.ready = sync.NewCond(&p.mu)
		s.mu.Lock()
		s.running[f.ID] = p
		s.mu.Unlock()
		go s.serve(f.ID, r, p)
		return
	}
	s.mu.Lock()
	p := s.running[f.ID]
	s.mu.Unlock()
	if p == nil {
		return // has ended meanwhile
	}
	switch f.Kind {
	case Stdin:
		p.feed(f.Data, false)
	case StdinEnd:
		p.feed(nil, true)
	case Window:
		var r Request
		if json.Unmarshal(f.Data, &r) == nil {
			p.window(r)
		}
	case Kill:
		p.kill()
	}
}

func (p *process) window(r Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal != nil {
		_ = unix.IoctlSetWinsize(int(p.terminal.Fd()), unix.TIOCSWINSZ,
			&unix.Winsize{Row: uint16(r.Rows), Col: uint16(r.Columns)})
	}
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.killed = true, true
	p.ready.Broadcast()
	if p.pid > 0 {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
}

func (s *server) serve(id uint32, r Request, p *process) {
	var result Result
	var err error
	switch r.Op {
	case "read":
		err = s.read(id, r.Path)
	case "write":
		err = putFile(r.Path, p, r.Mode)
	case "run":
		result, err = s.run(id, r, p)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	if err != nil {
		result = Result{Error: err.Error(), Absent: errors.Is(err, fs.ErrNotExist)}
	}
	s.mu.Lock()
	delete(s.running, id)
	s.mu.Unlock()
	_ = s.out.JSON(Exit, id, result)
}

func (s *server) read(id uint32, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(Stream{s.out, Stdout, id}, f)
	return err
}

// run runs a program until it ends. If a background child keeps the output open, the result is delayed only briefly.
func (s *server) run(id uint32, r Request, p *process) (Result, error) {
	if len(r.Args) == 0 {
		return Result{}, errors.New("no program")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(append([]string{}, environment...), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if path, err := lookPath(r.Args[0]); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	if r.Terminal {
		return s.runOnTerminal(id, r, p, cmd)
	}
	cmd.Stdout, cmd.Stderr = Stream{s.out, Stdout, id}, Stream{s.out, Stderr, id}
	input, err := cmd.StdinPipe()
	if err != nil {
		return Result{}, err
	}
	if err := p.start(cmd, nil); err != nil {
		return Result{}, err
	}
	go func() {
		_, _ = io.Copy(input, p)
		_ = input.Close()
	}()
	return status(cmd.Wait())
}

// lookPath searches the PATH of environment, and not that of this process.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, v := range environment {
		if list, ok := strings.CutPrefix(v, "PATH="); ok {
			for _, dir := range filepath.SplitList(list) {
				if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
					return filepath.Join(dir, name), nil
				}
			}
		}
	}
	return "", exec.ErrNotFound
}

func (p *process) start(cmd *exec.Cmd, terminal *os.File) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		return errors.New("killed before it started")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.pid, p.terminal = cmd.Process.Pid, terminal
	return nil
}

func status(err error) (Result, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return Result{Status: 128 + int(ws.Signal())}, nil
		}
		return Result{Status: exit.ExitCode()}, nil
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself ended well
	}
	return Result{}, err
}

func (s *server) runOnTerminal(id uint32, r Request, p *process, cmd *exec.Cmd) (Result, error) {
	control, terminal, err := openTerminal()
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = control.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = p.start(cmd, control)
	_ = terminal.Close()
	if err != nil {
		return Result{}, err
	}
	p.window(r)
	go func() { _, _ = io.Copy(control, p) }()
	output := make(chan struct{})
	go func() {
		defer close(output)
		_, _ = io.Copy(Stream{s.out, Stdout, id}, control) // ends with EIO when the last user is gone
	}()
	err = cmd.Wait()
	select {
	case <-output:
	case <-time.After(cmd.WaitDelay):
	}
	p.mu.Lock()
	p.terminal = nil
	p.mu.Unlock()
	return status(err)
}

// openTerminal returns both ends of a new pseudoterminal.
func openTerminal() (control, terminal *os.File, err error) {
	if control, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, control.Close())
	}
	return control, terminal, nil
}

// Unit returns the systemd unit that runs Serve.
func Unit(program string) []byte {
	return bytes.ReplaceAll([]byte(unit), []byte("PROGRAM"), []byte(program))
}

const unit = `[Unit]
Description=Guest program of the lab
DefaultDependencies=no
After=local-fs.target
Conflicts=shutdown.target
Before=shutdown.target sysinit.target
[Service]
ExecStart=PROGRAM serve
Restart=always
RestartSec=200ms
KillMode=process
TasksMax=infinity
IgnoreSIGPIPE=no
[Install]
WantedBy=sysinit.target
`
