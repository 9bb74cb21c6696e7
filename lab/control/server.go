//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"sync"
	"time"

	"cambium/lab"
	"cambium/lab/director"
)

// Server serves requests for a lab.
type Server struct {
	lab   *lab.Lab
	dir   string
	pid   int
	since time.Time
	http  *http.Server
	// down is closed when a client has asked to end the lab.
	down     chan struct{}
	downOnce sync.Once

	mu    sync.Mutex
	ports map[string]string // published addresses by machine
}

// Serve starts a server, which runs until Close.
func Serve(l *lab.Lab, dir string) (*Server, error) {
	s := &Server{lab: l, dir: dir, pid: os.Getpid(), since: time.Now(), down: make(chan struct{}),
		ports: map[string]string{}}
	listener, err := net.Listen("unix", socket(dir, l.Name()))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.State(), nil) })
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, nil, nil)
		s.downOnce.Do(func() { close(s.down) })
	})
	mux.HandleFunc("POST /machines/{machine}/{verb}", s.power)
	mux.HandleFunc("POST /disks", s.disk)
	mux.HandleFunc("POST /call", s.call)
	mux.HandleFunc("POST /deploy", s.deploy)
	mux.HandleFunc("GET /events", s.events)
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.http.Serve(listener) }()
	return s, nil
}

// State returns the current state of the lab.
func (s *Server) State() State { return state(s.lab, s) }

// Down returns a channel that is closed when a client has asked to end the lab.
func (s *Server) Down() <-chan struct{} { return s.down }

// shutdownTimeout bounds the wait for running requests when the server is closed.
const shutdownTimeout = 2 * time.Second

// Close stops the server, but not the lab. A client that has asked to end the lab gets its answer.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
}

// Published records the address at which a machine's port can be reached.
func (s *Server) Published(machine, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[machine] = address
}

func (s *Server) published(machine string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[machine]
}

func reply(w http.ResponseWriter, value any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		value = Line{Error: err.Error()}
	}
	_ = json.NewEncoder(w).Encode(value)
}

// machine finds a machine by name. If name is empty, there must be only one.
func (s *Server) machine(name string) (*lab.Instance, error) {
	all := s.lab.Machines()
	if i, ok := all[name]; ok {
		return i, nil
	}
	if name != "" {
		return nil, fmt.Errorf("lab %s has no machine %s", s.lab.Name(), name)
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("lab %s has %d machines: name one", s.lab.Name(), len(all))
	}
	for _, i := range all {
		return i, nil
	}
	panic("unreachable")
}

// powerTimeout bounds a power command, during which a machine may shut down and boot.
const powerTimeout = 5 * time.Minute

func (s *Server) power(w http.ResponseWriter, r *http.Request) {
	out := &stream{w: w}
	i, err := s.machine(r.PathValue("machine"))
	if err != nil {
		out.end(nil, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), powerTimeout)
	defer cancel()
	switch r.PathValue("verb") {
	case "start":
		err = i.Start(ctx)
	case "stop":
		err = i.Stop(ctx)
	case "reboot":
		err = i.Reboot(ctx)
	case "kill":
		err = i.Kill(ctx)
	case "cycle":
		if err = i.Kill(ctx); err == nil {
			err = i.Start(ctx)
		}
	case "delete":
		err = i.RemoveKeepingDisks(ctx)
	default:
		err = fmt.Errorf("unknown machine command %q", r.PathValue("verb"))
	}
	if err == nil && r.URL.Query().Has("wait") && i.Agent != nil && i.Running() {
		progress := func(format string, args ...any) { out.send(Line{Progress: fmt.Sprintf(format, args...)}) }
		verdict := ""
		if verdict, err = i.Await(ctx, progress); verdict != "" {
			out.send(Line{Verdict: verdict})
		}
	}
	out.end(nil, err)
}

func (s *Server) disk(w http.ResponseWriter, r *http.Request) {
	var c DiskChange
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		reply(w, nil, err)
		return
	}
	if c.Verb == "delete" {
		reply(w, Disk{ID: c.ID}, s.lab.DeleteDisk(c.ID))
		return
	}
	i, err := s.machine(c.Machine)
	if err != nil {
		reply(w, nil, err)
		return
	}
	result := Disk{ID: c.ID, Size: c.Size}
	switch c.Verb {
	case "attach":
		if !i.HasDisk(c.ID) {
			err = i.NewDisk(c.ID, c.Size)
		}
		if err == nil {
			var hint any
			if hint, err = i.AttachDisk(r.Context(), c.ID); err == nil {
				result.Path, _ = hint.(string)
			}
		}
	case "detach":
		err = i.DetachDisk(r.Context(), c.ID)
	case "resize":
		err = i.Resize(r.Context(), c.ID, c.Size)
	default:
		err = fmt.Errorf("unknown disk command %q", c.Verb)
	}
	reply(w, result, err)
}

// stream writes each line as soon as it is available.
type stream struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (o *stream) send(l Line) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = json.NewEncoder(o.w).Encode(l)
	if f, ok := o.w.(http.Flusher); ok {
		f.Flush()
	}
}

// end writes the last line.
func (o *stream) end(value json.RawMessage, err error) {
	l := Line{Done: true, Value: value}
	if err != nil {
		l.Error = err.Error()
		var e *director.Exception
		l.Agent = errors.As(err, &e)
	}
	o.send(l)
}

func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	out := &stream{w: w}
	var c Call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		out.end(nil, err)
		return
	}
	i, err := s.machine(c.Machine)
	switch {
	case err != nil:
	case i.Agent == nil:
		err = errors.New("the settings are not the lab's, so it does not know the agent: name it with --url")
	case !i.Running():
		err = fmt.Errorf("machine %s is off; switch it on with: lab machine start %s", i.Short, i.Short)
	}
	if err != nil {
		out.end(nil, err)
		return
	}
	value, err := Perform(r.Context(), *i.Agent, c, func(text string) { out.send(Line{Progress: text}) })
	out.end(value, err)
}

func (s *Server) deploy(w http.ResponseWriter, r *http.Request) {
	out := &stream{w: w}
	var d Deploy
	if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
		out.end(nil, err)
		return
	}
	d.Manifest.Base = d.Base
	out.end(nil, s.lab.Deploy(r.Context(), d.Manifest, func(instance, step string, took time.Duration, err error) {
		l := Line{Instance: instance, Step: step, Seconds: took.Seconds()}
		if err != nil {
			l.Error = err.Error()
		}
		out.send(l)
	}))
}

// events writes what agents have published so far and, with ?follow, what they publish later.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	out := &stream{w: w}
	if s.lab.Monitor == nil {
		out.end(nil, errors.New("the lab has no NATS server, which heartbeats and alerts need; start it without --bare"))
		return
	}
	coming, stop := s.lab.Monitor.Listen()
	defer stop()
	for _, e := range s.lab.Monitor.Events() {
		out.send(Line{Event: &e})
	}
	if !r.URL.Query().Has("follow") {
		out.end(nil, nil)
		return
	}
	for {
		select {
		case e := <-coming:
			out.send(Line{Event: &e})
		case <-r.Context().Done():
			return
		case <-s.down:
			out.end(nil, nil)
			return
		}
	}
}

func state(l *lab.Lab, s *Server) State {
	st := State{Name: l.Name(), PID: s.pid, Since: s.since, Network: l.Net.Name(), Machines: []Machine{}, Disks: []Disk{}}
	if l.Bus != nil {
		st.Bus = l.Bus.URL()
	}
	for id, image := range l.KeptDisks() {
		st.Disks = append(st.Disks, Disk{ID: id, Size: lab.ImageSize(image)})
	}
	sort.Slice(st.Disks, func(a, b int) bool { return st.Disks[a].ID < st.Disks[b].ID })
	for name, i := range l.Machines() {
		st.Machines = append(st.Machines, machineState(name, i, s.published(name)))
	}
	sort.Slice(st.Machines, func(a, b int) bool { return st.Machines[a].Name < st.Machines[b].Name })
	return st
}

func machineState(name string, i *lab.Instance, published string) Machine {
	m := Machine{Name: name, Running: i.Running(), AgentID: i.AgentID, IP: i.IP, Source: string(i.Source()),
		Console: i.Console(),
		Disks:   []Disk{}, Published: published}
	m.Boots, m.Since = i.Boots()
	if m.Running {
		m.Shell, _ = i.Shell() // gone meanwhile: then there is no shell
	}
	for _, a := range i.Disks() {
		m.Disks = append(m.Disks, Disk{ID: a.Disk.ID, Path: a.Path, Size: lab.ImageSize(a.Disk.Image)})
	}
	sort.Slice(m.Disks, func(a, b int) bool { return m.Disks[a].ID < m.Disks[b].ID })
	return m
}
