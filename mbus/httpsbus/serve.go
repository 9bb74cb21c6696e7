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

// ServeHTTP answers a request. Until the caller has authenticated, it uses only the path.
func (b *Bus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Deadlines outlive a request on a connection that is kept open.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	var serve func(http.ResponseWriter, *http.Request) (status int, reason string)
	switch {
	case r.URL.Path == "/agent":
		serve = b.serveAgent
	case strings.HasPrefix(r.URL.Path, "/blobs/"):
		serve = b.serveBlob
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	status, reason, user := http.StatusUnauthorized, "wrong user or password", ""
	caller, _ := r.Context().Value(pendingKey{}).(*pendingConn)
	if b.auth.valid(r) {
		user = b.user
		caller.admit()
		status, reason = serve(w, r)
	} else {
		// The delay occupies one of the peer's few pending connections, and ends when that one is closed in
		// favor of a new one.
		caller.wait(r.Context(), b.auth.delay(caller.peer, time.Now()))
		w.Header().Set("WWW-Authenticate", `Basic realm=""`)
		w.Header().Set("Connection", "close")
		w.WriteHeader(status)
	}
	b.record(r, user, status, reason)
	writeWithin(w, 0) // what is still buffered
}

func (b *Bus) record(r *http.Request, user string, status int, reason string) {
	if b.options.Audit == nil {
		return
	}
	host, port, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	b.options.Audit.Record(mbus.HTTPSEvent(mbus.HTTPRequest{
		Path: r.URL.Path, User: user, Method: r.Method, Source: host, Port: port, Hostname: b.hostname,
		Headers: summary(r), Status: status, Reason: reason,
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

// empty answers without a body.
func empty(w http.ResponseWriter, status int, reason string) (int, string) {
	w.WriteHeader(status)
	return status, reason
}

func (b *Bus) serveAgent(w http.ResponseWriter, r *http.Request) (status int, reason string) {
	if r.Method != http.MethodPost {
		return empty(w, http.StatusNotFound, "")
	}
	body := http.MaxBytesReader(w, io.NopCloser(newPaced(w, r.Body)), maxEnvelope)
	data, err := io.ReadAll(body)
	if err != nil {
		return empty(w, http.StatusBadRequest, "request body not read")
	}
	request, err := mbus.DecodeRequest(data)
	if err != nil {
		return empty(w, http.StatusInternalServerError, err.Error())
	}
	request.KeepsWaiting = true
	// No read deadline any more: net/http cancels the context when the caller disconnects.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	replies := make(chan mbus.Reply, 1)
	b.options.Handler.Handle(r.Context(), request, func(reply mbus.Reply) { replies <- reply })
	select {
	case reply := <-replies:
		if reply.Silent() {
			w.Header().Set("Connection", "close")
			return empty(w, http.StatusServiceUnavailable, "not answered")
		}
		data := reply.Encode(0)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		writeWithin(w, int64(len(data)))
		_, _ = w.Write(data) // fails if the caller has disconnected
		reason, _ = reply.ExceptionText()
		return http.StatusOK, reason
	case <-r.Context().Done():
		return empty(w, http.StatusServiceUnavailable, "caller disconnected")
	}
}

// serveBlob serves a blob. The last segment of the path is its id.
func (b *Bus) serveBlob(w http.ResponseWriter, r *http.Request) (status int, reason string) {
	id := path.Base(r.URL.Path)
	if id == "." || id == "/" || strings.HasSuffix(r.URL.Path, "/") {
		if r.Method == http.MethodPut {
			return blobError(w, errors.New("store blob: the path does not name a blob"))
		}
		return empty(w, http.StatusNotFound, "")
	}
	switch r.Method {
	case http.MethodPut:
		if err := b.options.Blobs.Write(id, newPaced(w, r.Body)); err != nil {
			return blobError(w, err)
		}
		return empty(w, http.StatusCreated, "")
	case http.MethodGet:
		return b.sendBlob(w, id)
	default: // HEAD and DELETE too: cloudfoundry/bosh-agent knows neither
		return empty(w, http.StatusNotFound, "")
	}
}

func (b *Bus) sendBlob(w http.ResponseWriter, id string) (status int, reason string) {
	file, err := b.options.Blobs.Open(id)
	if err != nil {
		return blobError(w, err)
	}
	defer func() { _ = file.Close() }() // read only
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return blobError(w, err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	writeWithin(w, info.Size())
	if _, err := io.CopyN(w, file, info.Size()); err != nil {
		reason = "blob not sent: " + err.Error()
	}
	return http.StatusOK, reason
}

func blobError(w http.ResponseWriter, err error) (status int, reason string) {
	if errors.Is(err, fs.ErrNotExist) {
		return empty(w, http.StatusNotFound, err.Error())
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, err.Error()) // fails if the caller has disconnected
	return http.StatusInternalServerError, err.Error()
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
