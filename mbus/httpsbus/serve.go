package httpsbus

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"cambium/mbus"
)

// recorder records the status for the audit line.
type recorder struct {
	http.ResponseWriter
	status int
	reason string
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap gives http.ResponseController access to the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// ServeHTTP answers a request. Until the caller has authenticated, it uses only the path.
func (b *Bus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Deadlines outlive a request on a connection that is kept open.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	var serve func(*recorder, *http.Request)
	switch {
	case r.URL.Path == "/agent":
		serve = b.serveAgent
	case strings.HasPrefix(r.URL.Path, "/blobs/"):
		serve = b.serveBlob
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	rec := &recorder{ResponseWriter: w}
	user := ""
	caller, _ := r.Context().Value(pendingKey{}).(*pendingConn)
	if b.auth.valid(r) {
		user = b.user
		caller.admit()
		serve(rec, r)
	} else {
		// The delay occupies one of the peer's few pending connections, and ends when that one is closed in
		// favor of a new one.
		caller.wait(r.Context(), b.auth.delay(caller.peer, time.Now()))
		rec.reason = "wrong user or password"
		rec.Header().Set("WWW-Authenticate", `Basic realm=""`)
		rec.Header().Set("Connection", "close")
		rec.WriteHeader(http.StatusUnauthorized)
	}
	b.record(rec, r, user)
	writeWithin(w, 0) // what is still buffered
}

func (b *Bus) record(rec *recorder, r *http.Request, user string) {
	if b.options.Audit == nil {
		return
	}
	host, port, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	b.options.Audit.Record(mbus.HTTPSEvent(mbus.HTTPRequest{
		Path: r.URL.Path, User: user, Method: r.Method, Source: host, Port: port, Hostname: b.hostname,
		Headers: summary(r), Status: rec.status, Reason: rec.reason,
	}))
}

// summary lists the headers that say where a request came from.
func summary(r *http.Request) string {
	parts := []string{"HOST=" + r.Host}
	for _, name := range []string{"X-Real-Ip", "X-Forwarded-For", "X-Forwarded-Proto", "User-Agent"} {
		if value := r.Header.Get(name); value != "" {
			parts = append(parts, strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+value)
		}
	}
	return strings.Join(parts, "&")
}

func (b *Bus) serveAgent(w *recorder, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	body := http.MaxBytesReader(w, io.NopCloser(newPaced(w, r.Body)), maxEnvelope)
	data, err := io.ReadAll(body)
	if err != nil {
		w.reason = "request body not read"
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	request, err := mbus.DecodeRequest(data)
	if err != nil {
		w.reason = err.Error()
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	request.KeepsWaiting = true
	// No read deadline any more: net/http cancels the context when the caller disconnects.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	replies := make(chan mbus.Reply, 1)
	b.options.Handler.Handle(r.Context(), request, func(reply mbus.Reply) { replies <- reply })
	select {
	case reply := <-replies:
		if reply.Silent() {
			w.reason = "not answered"
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.reason, _ = reply.ExceptionText()
		data := reply.Encode(0)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		writeWithin(w, int64(len(data)))
		_, _ = w.Write(data) // fails if the caller has disconnected
	case <-r.Context().Done():
		w.reason = "caller disconnected"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// serveBlob serves a blob. The last segment of the path is its id.
func (b *Bus) serveBlob(w *recorder, r *http.Request) {
	id := path.Base(r.URL.Path)
	if id == "." || id == "/" || strings.HasSuffix(r.URL.Path, "/") {
		if r.Method == http.MethodPut {
			b.blobError(w, errors.New("store blob: the path does not name a blob"))
			return
		}
		w.WriteHeader(http.StatusNotFound)
		return
	}
	switch r.Method {
	case http.MethodPut:
		if err := b.options.Blobs.Write(id, newPaced(w, r.Body)); err != nil {
			b.blobError(w, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	case http.MethodGet:
		b.sendBlob(w, id)
	default: // HEAD and DELETE too: cloudfoundry/bosh-agent knows neither
		w.WriteHeader(http.StatusNotFound)
	}
}

func (b *Bus) sendBlob(w *recorder, id string) {
	file, err := b.options.Blobs.Open(id)
	if err != nil {
		b.blobError(w, err)
		return
	}
	defer func() { _ = file.Close() }() // read only
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		b.blobError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	writeWithin(w, info.Size())
	if _, err := io.CopyN(w, file, info.Size()); err != nil {
		w.reason = "blob not sent: " + err.Error()
	}
}

func (b *Bus) blobError(w *recorder, err error) {
	w.reason = err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, err.Error()) // fails if the caller has disconnected
}

// paced enforces a minimum rate while a body is read. The deadline moves with the bytes that arrive, so that bodies of
// any size are accepted, but slow senders (slowloris) are not.
type paced struct {
	body    io.Reader
	control *http.ResponseController
	begun   time.Time
	bytes   int64
}

func newPaced(w http.ResponseWriter, body io.Reader) *paced {
	return &paced{body: body, control: http.NewResponseController(w), begun: time.Now()}
}

func (p *paced) Read(buffer []byte) (int, error) {
	deadline := p.begun.Add(allowance(p.bytes))
	if err := p.control.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := p.body.Read(buffer)
	p.bytes += int64(n)
	return n, err
}

func allowance(bytes int64) time.Duration {
	return transferGrace + time.Duration(bytes/minRate)*time.Second
}

// writeWithin sets the deadline for writing the given number of bytes at the minimum rate. It cannot fail on a
// connection of this server.
func writeWithin(w http.ResponseWriter, bytes int64) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(allowance(bytes)))
}
