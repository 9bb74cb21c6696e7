package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// monitor is a client of QEMU's machine protocol (QMP). Replies to commands and events share one stream.
type monitor struct {
	conn *net.UnixConn

	mu       sync.Mutex
	next     int
	waiting  map[int]chan message
	watchers map[int]func(message)
	closed   chan struct{}
}

// message is a message from QEMU.
type message struct {
	QMP    json.RawMessage `json:"QMP,omitempty"`
	ID     *int            `json:"id,omitempty"`
	Return json.RawMessage `json:"return,omitempty"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error,omitempty"`
	Event string          `json:"event,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// errMonitor means that QEMU has ended.
var errMonitor = errors.New("qemu has ended")

// newMonitor takes over a connection to QEMU. event is called for each event, in order.
func newMonitor(ctx context.Context, conn *net.UnixConn, event func(message)) (*monitor, error) {
	m := &monitor{conn: conn, waiting: map[int]chan message{}, watchers: map[int]func(message){0: event},
		closed: make(chan struct{})}
	go m.read()
	return m, m.do(ctx, "qmp_capabilities", nil, nil)
}

func (m *monitor) read() {
	defer close(m.closed)
	for d := json.NewDecoder(m.conn); ; {
		var msg message
		if err := d.Decode(&msg); err != nil {
			return
		}
		m.mu.Lock()
		var watchers []func(message)
		if msg.Event != "" {
			for _, w := range m.watchers {
				watchers = append(watchers, w)
			}
		} else if msg.ID != nil {
			if c, ok := m.waiting[*msg.ID]; ok {
				c <- msg // has room for one
				delete(m.waiting, *msg.ID)
			}
		}
		m.mu.Unlock()
		for _, w := range watchers {
			w(msg)
		}
	}
}

// do sends a command and waits for its reply.
func (m *monitor) do(ctx context.Context, command string, arguments, result any) error {
	return m.doWith(ctx, command, arguments, result, nil)
}

// addFile passes an open file to QEMU and returns the set that contains it.
func (m *monitor) addFile(ctx context.Context, f *os.File) (set int, err error) {
	var added struct {
		Set int `json:"fdset-id"`
	}
	err = m.doWith(ctx, "add-fd", nil, &added, unix.UnixRights(int(f.Fd())))
	return added.Set, err
}

// removeFile makes QEMU close the file of a set. Until then QEMU keeps even a deleted file.
func (m *monitor) removeFile(ctx context.Context, set int) error {
	return m.do(ctx, "remove-fd", map[string]any{"fdset-id": set}, nil)
}

// doWith is do with ancillary data, such as file descriptors.
func (m *monitor) doWith(ctx context.Context, command string, arguments, result any, rights []byte) error {
	answer := make(chan message, 1)
	m.mu.Lock()
	m.next++
	id := m.next
	m.waiting[id] = answer
	request := map[string]any{"execute": command, "id": id}
	if arguments != nil {
		request["arguments"] = arguments
	}
	data, err := json.Marshal(request)
	if err == nil {
		err = m.send(append(data, '\n'), rights)
	}
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case a := <-answer:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", command, a.Error.Desc)
		}
		if result != nil {
			return json.Unmarshal(a.Return, result)
		}
		return nil
	case <-m.closed:
		return fmt.Errorf("%s: %w", command, errMonitor)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

func (m *monitor) send(data, rights []byte) error {
	n, err := 0, error(nil)
	if len(rights) > 0 {
		n, _, err = m.conn.WriteMsgUnix(data, rights, nil)
	}
	if err == nil {
		_, err = m.conn.Write(data[n:])
	}
	return err
}

// watch returns a channel of matching events until stop is called. It keeps at most one unread event.
func (m *monitor) watch(match func(message) bool) (events <-chan message, stop func()) {
	c := make(chan message, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	id := m.next
	m.watchers[id] = func(msg message) {
		if match(msg) {
			select {
			case c <- msg:
			default:
			}
		}
	}
	return c, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, id)
	}
}

// job runs a background job of QEMU until it ends.
func (m *monitor) job(ctx context.Context, command string, arguments map[string]any) error {
	m.mu.Lock()
	m.next++
	id := fmt.Sprintf("job%d", m.next)
	m.mu.Unlock()
	arguments["job-id"] = id
	concluded, stop := m.watch(func(msg message) bool {
		var d struct{ ID, Status string }
		return msg.Event == "JOB_STATUS_CHANGE" && json.Unmarshal(msg.Data, &d) == nil && d.ID == id &&
			d.Status == "concluded"
	})
	defer stop()
	if err := m.do(ctx, command, arguments, nil); err != nil {
		return err
	}
	select {
	case <-concluded:
	case <-m.closed:
		return fmt.Errorf("%s: %w", command, errMonitor)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
	var jobs []struct{ ID, Error string }
	if err := m.do(ctx, "query-jobs", nil, &jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		if j.ID == id && j.Error != "" {
			return errors.Join(fmt.Errorf("%s: %s", command, j.Error), m.do(ctx, "job-dismiss", map[string]any{"id": id}, nil))
		}
	}
	return m.do(ctx, "job-dismiss", map[string]any{"id": id}, nil)
}
