package cpi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cambium/lab/iaas"

	"github.com/sirupsen/logrus"
)

// socket returns the path of the socket of an IaaS's holder.
func socket(dir, name string) string { return filepath.Join(iaas.Directory(dir, name), "socket") }

// Envelope is the message from the CPI program to the holder: the request and, from the program's configuration, the
// defaults for agents. The bytes of an image follow on the next line.
type Envelope struct {
	Request Request            `json:"request"`
	Agent   iaas.AgentDefaults `json:"agent"`
	// Delivery identifies this call if the caller will confirm that it has passed on the reply. If it disconnects
	// without confirming, the holder removes what the call has created.
	Delivery string `json:"delivery,omitempty"`
}

// maxEnvelope bounds a request without its image.
const maxEnvelope = 16 << 20

// holder is the service of the process that holds an IaaS.
type holder struct {
	iaas *iaas.IaaS
	log  *logrus.Entry

	mu      sync.Mutex
	calls   int  // number of running calls
	ending  bool // no more calls are accepted
	idle    *time.Timer
	done    chan struct{}
	closing chan struct{} // closed when callers of Enter must end
	remote  *http.Server  // for callers inside VMs; may be nil
	// deliveries has a channel for each call that waits for a confirmation. The confirmation closes it.
	deliveries map[string]chan struct{}
}

// How long a holder of an empty IaaS waits: at first for the call for which it was started, and later for another call
// that may be on its way.
const (
	firstIdle = 20 * time.Second
	emptyIdle = 500 * time.Millisecond
)

// hold opens the IaaS and answers requests until ctx ends or the IaaS is empty. It calls ready when it can answer.
func hold(ctx context.Context, dir, name string, log *logrus.Entry, ready func()) (failed error) {
	i, err := iaas.Open(dir, name, log)
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, i.Close()) }()
	h := &holder{iaas: i, log: log, done: make(chan struct{}), closing: make(chan struct{}),
		deliveries: map[string]chan struct{}{}}
	h.idle = time.AfterFunc(firstIdle, h.endIfEmpty)
	defer h.idle.Stop()
	if err := h.listenTLS(dir, name); err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.remote != nil {
			_ = h.remote.Close()
		}
	}()
	path := socket(dir, name)
	_ = os.Remove(path) // of a holder that was killed
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h.handler(dir, name), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ready()
	go i.Resume(context.WithoutCancel(ctx))
	select {
	case <-ctx.Done():
	case <-h.done:
	case err := <-served:
		return err
	}
	close(h.closing)
	within, cancel := context.WithTimeout(context.Background(), lastAnswers)
	defer cancel()
	if server.Shutdown(within) != nil {
		_ = server.Close()
	}
	return nil
}

// HoldMain runs a holder and returns the exit status. The first line on standard output says whether the holder
// answers.
func HoldMain(ctx context.Context, dir, name string) int {
	log := logrus.New()
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
	answers := false
	err := hold(ctx, dir, name, log.WithField("component", "iaas"), func() {
		answers = true
		_, _ = fmt.Fprintln(os.Stdout, readyLine)
		_ = os.Stdout.Close() // the caller waits for nothing more
	})
	if err == nil {
		return 0
	}
	if !answers {
		_, _ = fmt.Fprintln(os.Stdout, err)
	}
	log.WithError(err).Error("holder failed")
	return 1
}

// lastAnswers bounds the wait for running calls when the holder ends.
const lastAnswers = 30 * time.Second

func (h *holder) handler(dir, name string) http.Handler {
	mux := h.calling(func() []string { return nil })
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { write(w, h.iaas.List()) })
	mux.HandleFunc("POST /stay", h.stay)
	do := func(path string, f func() error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := f(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	do("/tls", func() error { return h.listenTLS(dir, name) })
	do("/host-route", h.iaas.ConnectHost)
	return mux
}

// calling returns the handler for requests of all callers. refused returns the engines that the caller may not use.
func (h *holder) calling(refused func() []string) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /cpi", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, refused()) })
	mux.HandleFunc("POST "+deliveredPath+"{delivery}", func(_ http.ResponseWriter, r *http.Request) {
		h.delivered(r.PathValue("delivery"))
	})
	return mux
}

// deliveredPath is the prefix of the path of a confirmation.
const deliveredPath = "/delivered/"

// delivered records that a caller has passed on its reply.
func (h *holder) delivered(delivery string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, waiting := h.deliveries[delivery]; waiting {
		close(c)
		delete(h.deliveries, delivery)
	}
}

// deliver writes a reply. It reports whether the caller received it and, if the caller confirms, has passed it on.
func (h *holder) deliver(w http.ResponseWriter, r *http.Request, delivery string, reply Reply) bool {
	confirmed := make(chan struct{})
	if delivery == "" {
		close(confirmed)
	} else {
		h.mu.Lock()
		h.deliveries[delivery] = confirmed
		h.mu.Unlock()
		defer h.delivered(delivery)
	}
	if r.Context().Err() != nil {
		return false
	}
	write(w, reply)
	if http.NewResponseController(w).Flush() != nil {
		return false
	}
	select {
	case <-confirmed:
	case <-h.closing: // a confirmation would not be heard any more
		return true
	case <-r.Context().Done():
	}
	select { // who has confirmed disconnects, too
	case <-confirmed:
		return true
	default:
		return false
	}
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// begin counts a call. It returns false if the holder is ending.
func (h *holder) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		return false
	}
	h.calls++
	h.idle.Stop()
	return true
}

func (h *holder) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls--
	h.idle.Reset(emptyIdle)
}

func (h *holder) endIfEmpty() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls == 0 && !h.ending && h.iaas.Empty() {
		h.ending = true
		close(h.done)
	}
}

func (h *holder) serve(w http.ResponseWriter, r *http.Request, refused []string) {
	if !h.begin() {
		http.Error(w, "ending", http.StatusServiceUnavailable)
		return
	}
	defer h.finish()
	body := bufio.NewReader(r.Body)
	line, err := readLine(body)
	var e Envelope
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		write(w, Failure(fmt.Errorf("request to the holder: %w", err)))
		return
	}
	if e.Request.Method != "create_stemcell" {
		// Read to the end: only then does net/http notice that the caller has disconnected.
		_, _ = io.Copy(io.Discard, body)
	}
	log := h.log.WithFields(logrus.Fields{"method": e.Request.Method, "request_id": e.Request.Context.RequestID})
	begin := time.Now()
	// A call is completed or undone even if its caller is killed.
	reply, undo := backend{h.iaas, refused}.do(context.WithoutCancel(r.Context()), e.Request, e.Agent, body)
	took := time.Since(begin).Round(time.Millisecond)
	reply.Log = summary(e.Request, reply, took) + h.verdict(e.Request)
	log = log.WithField("took", took)
	if reply.Error != nil {
		log.WithField("error", reply.Error.Message).Warn("call failed")
	} else {
		log.Info("call answered")
	}
	if undo == nil {
		write(w, reply)
		return
	}
	if h.deliver(w, r, e.Delivery, reply) {
		return
	}
	log.Warn("the caller is gone and got no reply; removing what was created for it")
	if err := undo(); err != nil {
		log.WithError(err).Error("cannot remove what was created for a caller that is gone")
	}
}

// summary returns a log line for the Director's task: the method, its objects, the created object, and the duration.
// Other arguments may be secret.
func summary(r Request, reply Reply, took time.Duration) string {
	line := r.Method
	for _, argument := range r.Arguments {
		var cid iaas.CID
		if json.Unmarshal(argument, &cid) == nil && cid != (iaas.CID{}) {
			line += " " + cid.String()
		}
	}
	outcome := "done"
	if reply.Error != nil {
		outcome = "failed"
	} else if methods[r.Method].undo != nil {
		outcome = first(reply.Result).String()
	}
	return fmt.Sprintf("%s: %s in %s\n", line, outcome, took.Round(time.Millisecond))
}

// verdict returns a log line for the Director's task: why it may have deleted a VM. It is empty for other methods.
func (h *holder) verdict(r Request) string {
	if r.Method != "delete_vm" {
		return ""
	}
	vm, err := r.cid(0, iaas.VMs)
	if err != nil {
		return ""
	}
	last := h.iaas.LastVerdict(vm)
	if last == "" {
		last = "none"
	}
	return fmt.Sprintf("last verdict of the agent: %s\n", last)
}

// stay keeps the holder running until the caller, which runs a command in the network, disconnects.
func (h *holder) stay(w http.ResponseWriter, r *http.Request) {
	if !h.begin() {
		http.Error(w, "ending", http.StatusServiceUnavailable)
		return
	}
	defer h.finish()
	write(w, h.iaas.Net.Path())
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
	case <-h.closing:
	}
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return bytes.TrimSuffix(line, []byte("\n")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(line) > maxEnvelope {
			return nil, fmt.Errorf("it is longer than %d bytes", maxEnvelope)
		}
	}
}
