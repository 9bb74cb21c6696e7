// Package execs counts the programs that a process and its descendants execute, with the kernel's process events. It
// also sees processes in containers, needs nothing inside them and does not slow them down. It requires root in the
// host's initial namespaces.
package execs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/bounded"
)

// Kernel constants of the process events connector.
const (
	connectorProc = 1 // CN_IDX_PROC and CN_VAL_PROC
	listen        = 1 // PROC_CN_MCAST_LISTEN
	eventFork     = 1
	eventExec     = 2
	eventExit     = 0x80000000
	headerLength  = unix.SizeofNlMsghdr + 20 // headers of netlink and connector
)

// Program is one successful execve by a descendant of a watched process.
type Program struct {
	PID  int
	Args string // if it could still be read
}

// family is a watched process, and the programs that its descendants have executed.
type family struct {
	pid       int
	namespace string // PID namespace, which identifies the machine
	began     time.Time
	programs  []Program
}

// Watch counts programs while it runs.
type Watch struct {
	socket int
	name   string
	done   chan struct{}

	mu       sync.Mutex // guards the fields below
	tracked  map[uint32]*family
	families []*family
	lost     bool
	ended    map[uint32]bool // processes that ended while CatchUp waits
	seen     sync.Cond       // a process was added to ended, or CatchUp has timed out
}

// Start watches processes that execute a program with the file name name, and counts the programs that their
// descendants execute.
func Start(name string) (*Watch, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("process events: %w", err)
	}
	w := &Watch{socket: socket, name: name, done: make(chan struct{}), tracked: map[uint32]*family{}}
	w.seen.L = &w.mu
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorProc}),
		w.subscribe())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("process events: %w", err), unix.Close(socket))
	}
	go w.run()
	return w, nil
}

func (w *Watch) subscribe() error {
	var b bytes.Buffer
	for _, v := range []any{
		uint32(headerLength + 4), uint16(unix.NLMSG_DONE), uint16(0), uint32(0), uint32(os.Getpid()),
		uint32(connectorProc), uint32(connectorProc), uint32(0), uint32(0), uint16(4), uint16(0),
		uint32(listen),
	} {
		if err := binary.Write(&b, binary.NativeEndian, v); err != nil {
			return err
		}
	}
	return unix.Sendto(w.socket, b.Bytes(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (w *Watch) run() {
	defer close(w.done)
	buffer := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(w.socket, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			w.mu.Lock()
			w.lost = true
			w.mu.Unlock()
			continue
		case err != nil:
			return
		}
		if n >= headerLength+24 {
			w.event(buffer[headerLength:n])
		}
	}
}

// event handles a struct proc_event: what, cpu, timestamp, and then the fields of the event.
func (w *Watch) event(e []byte) {
	field := func(i int) uint32 { return binary.NativeEndian.Uint32(e[16+4*i:]) }
	w.mu.Lock()
	defer w.mu.Unlock()
	switch binary.NativeEndian.Uint32(e) {
	case eventFork:
		if f := w.tracked[field(1)]; f != nil && len(e) >= 32 {
			w.tracked[field(3)] = f
		}
	case eventExec:
		pid := field(1)
		switch f := w.tracked[pid]; {
		case f != nil:
			f.programs = append(f.programs, Program{PID: int(pid), Args: arguments(pid)})
		case w.named(pid):
			f = &family{pid: int(pid), namespace: namespace(pid), began: time.Now()}
			w.tracked[pid] = f
			w.families = append(w.families, f)
		}
	case eventExit:
		// Each thread that ends has an event of its own, under its process's id as well: only
		// the first thread's is the process's end.
		if field(0) == field(1) {
			delete(w.tracked, field(1))
			if w.ended != nil {
				w.ended[field(1)] = true
				w.seen.Broadcast()
			}
		}
	}
}

func (w *Watch) named(pid uint32) bool {
	link, err := os.Readlink("/proc/" + strconv.Itoa(int(pid)) + "/exe")
	return err == nil && filepath.Base(link) == w.name
}

// commandLines bounds reads of command lines, because a process can block them.
var commandLines bounded.Group

func arguments(pid uint32) string {
	data, err := bounded.ReadFile(&commandLines, "/proc/"+strconv.Itoa(int(pid))+"/cmdline")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

func namespace(pid uint32) string {
	link, err := os.Readlink("/proc/" + strconv.Itoa(int(pid)) + "/ns/pid")
	if err != nil {
		return "?"
	}
	return link
}

// Family summarizes the watched processes of one machine and the programs that they executed.
type Family struct {
	Processes int
	Programs  []Program
	// LastPID and Began describe the process that began last. LastPID is the pid on the host.
	LastPID int
	Began   time.Time
}

// catchUpTimeout bounds CatchUp's wait for the end of its marker process.
const catchUpTimeout = 10 * time.Second

// CatchUp returns when all earlier events were counted. The kernel's events are in order, so it starts a process and
// waits for the event of its end.
func (w *Watch) CatchUp() error {
	w.mu.Lock()
	w.ended = map[uint32]bool{}
	w.mu.Unlock()
	marker := exec.Command("true")
	if err := marker.Run(); err != nil {
		return fmt.Errorf("process events: %w", err)
	}
	pid := uint32(marker.Process.Pid)
	deadline := time.Now().Add(catchUpTimeout)
	timer := time.AfterFunc(catchUpTimeout, w.seen.Broadcast)
	defer timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.ended = nil }()
	for !w.ended[pid] {
		if w.lost || !time.Now().Before(deadline) {
			return errors.New("process events were lost")
		}
		w.seen.Wait()
	}
	return nil
}

// Of returns the programs executed so far in a machine, which is identified by its PID namespace: the text that
// readlink /proc/self/ns/pid prints in it. It fails if the kernel has dropped events, because the count is then wrong.
func (w *Watch) Of(namespace string) (all Family, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.families {
		if f.namespace == namespace {
			all.Processes++
			all.Programs = append(all.Programs, f.programs...)
			all.LastPID, all.Began = f.pid, f.began
		}
	}
	if w.lost {
		err = errors.New("process events were lost")
	}
	return all, err
}

// Close stops the watch.
func (w *Watch) Close() error {
	err := unix.Shutdown(w.socket, unix.SHUT_RDWR)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	closed := unix.Close(w.socket)
	<-w.done
	return errors.Join(err, closed)
}
