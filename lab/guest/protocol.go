// Package guest is the lab's guest program, which runs inside a virtual machine. It starts the system from the initial
// RAM disk. Then it runs programs, and reads and writes files, for the host, over a virtio serial port. It is part of
// the lab's images and unknown to the agent.
//
// Both sides exchange frames: kind, number of the request, length, content. Several requests can run at the same time.
// The guest sends Hello when it is ready.
package guest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"sync"
)

// Port is the name of the serial port.
const Port = "cambium.guest"

// Kind is the kind of a frame.
type Kind byte

// The kinds. The host sends Run, Stdin, StdinEnd, Window and Kill; the guest sends the others.
const (
	Hello Kind = iota + 1
	Run
	Stdin
	StdinEnd
	Window
	Kill
	Stdout
	Stderr
	Exit
)

// Request is the content of Run.
type Request struct {
	Op   string      `json:"op"` // "run", "read" or "write"
	Args []string    `json:"args,omitempty"`
	Env  []string    `json:"env,omitempty"`
	Path string      `json:"path,omitempty"`
	Mode fs.FileMode `json:"mode,omitempty"`
	// Terminal runs the program on a terminal. Stdout then has all output.
	Terminal bool `json:"terminal,omitempty"`
	Rows     int  `json:"rows,omitempty"`
	Columns  int  `json:"columns,omitempty"`
}

// Result is the content of Exit.
type Result struct {
	Status int    `json:"status"`
	Error  string `json:"error,omitempty"` // an error other than an exit status
	Absent bool   `json:"absent,omitempty"`
}

// Frame is one message.
type Frame struct {
	Kind Kind
	ID   uint32
	Data []byte
}

// maxData is the maximum size of a frame's content. Longer streams need several frames.
const maxData = 32 << 10

const headerSize = 9

// Read reads one frame.
func Read(r io.Reader) (Frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return Frame{}, err
	}
	size := binary.BigEndian.Uint32(header[5:])
	if size > maxData {
		return Frame{}, fmt.Errorf("frame of %d bytes", size)
	}
	f := Frame{Kind: Kind(header[0]), ID: binary.BigEndian.Uint32(header[1:]), Data: make([]byte, size)}
	_, err := io.ReadFull(r, f.Data)
	return f, err
}

// Writer writes frames. Its methods may be called from several goroutines.
type Writer struct {
	mu sync.Mutex
	W  io.Writer
}

// Frame writes one frame.
func (w *Writer) Frame(kind Kind, id uint32, data []byte) error {
	if len(data) > maxData {
		return fmt.Errorf("frame of %d bytes", len(data))
	}
	buffer := make([]byte, headerSize, headerSize+len(data))
	buffer[0] = byte(kind)
	binary.BigEndian.PutUint32(buffer[1:], id)
	binary.BigEndian.PutUint32(buffer[5:], uint32(len(data)))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.W.Write(append(buffer, data...))
	return err
}

// JSON writes a frame with a JSON document.
func (w *Writer) JSON(kind Kind, id uint32, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return w.Frame(kind, id, data)
}

// Stream is an io.Writer that writes its data as frames of one kind.
type Stream struct {
	To   *Writer
	Kind Kind
	ID   uint32
}

func (s Stream) Write(data []byte) (int, error) {
	for sent := 0; sent < len(data); {
		n := min(len(data)-sent, maxData)
		if err := s.To.Frame(s.Kind, s.ID, data[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(data), nil
}
