package httpsbus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/internal/secret"
	"cambium/mbus"
)

// touched records what a request reached after the password.
type touched struct{ calls, blobs []string }

func (r *touched) Handle(_ context.Context, q mbus.Request, reply func(mbus.Reply)) {
	r.calls = append(r.calls, q.Method)
	if q.Method == "silence" {
		reply(mbus.Silence())
		return
	}
	reply(mbus.Value(q.Arguments))
}

func (r *touched) Open(id string) (*os.File, error) {
	r.blobs = append(r.blobs, id)
	return nil, fs.ErrNotExist
}

func (r *touched) Write(id string, content io.Reader) error {
	r.blobs = append(r.blobs, id)
	_, err := io.Copy(io.Discard, content)
	return err
}

func (r *touched) Record(mbus.Event) {}

// FuzzRequest feeds what comes out of the TLS connection. Nothing is reached without the password, blobs are named by
// one component of a path, and every request gets one of the answers that callers know.
func FuzzRequest(f *testing.F) {
	const right = "Authorization: Basic bWJ1czpzM2NyZXQ=\r\n" // mbus:s3cret
	if want := base64.StdEncoding.EncodeToString([]byte("mbus:s3cret")); !strings.Contains(right, want) {
		f.Fatalf("the password is %s", want)
	}
	post := func(header, body string) string {
		return fmt.Sprintf("POST /agent HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
	}
	for _, seed := range []string{
		post(right, `{"method":"ping","arguments":[],"reply_to":"x"}`),
		post(right, `{"method":"silence"}`),
		post(right, `{"method":1}`),
		post("Authorization: Basic bWJ1czp4\r\n", `{"method":"ping"}`),
		post("", `{"method":"ping"}`),
		post(strings.ToLower(right), `{"method":"ping","arguments":{}}`),
		"POST /agent HTTP/1.1\r\nHost: a\r\n" + right + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"PUT /blobs/a9/b9d2 HTTP/1.1\r\nHost: a\r\n" + right + "Content-Length: 4\r\n\r\nblob",
		"GET /blobs/b9d2 HTTP/1.1\r\nHost: a\r\n" + right + "\r\n",
		"GET /blobs/..%2f..%2fetc/shadow HTTP/1.0\r\n" + right + "\r\n",
		"GET /blobs/../../etc/shadow HTTP/1.1\r\nHost: a\r\n" + right + "\r\n",
		"HEAD /blobs/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: a&b=c\r\n" + right + "\r\n",
		"DELETE /blobs/%00 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET http://x/agent HTTP/1.1\r\nHost: a\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	b, err := New(Options{URL: secret.NewURL("https://mbus:s3cret@127.0.0.1:0"),
		KeyFile: filepath.Join(f.TempDir(), "https.pem"), Log: quiet()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		reached := &touched{}
		bus := &Bus{options: Options{Handler: reached, Blobs: reached, Audit: reached, Log: b.options.Log}, user: b.user,
			auth: newAuth("mbus", "s3cret")}
		caller := newPendingConns().add(&from{address: "198.51.100.1"})
		w := httptest.NewRecorder()
		bus.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), pendingKey{}, caller)))
		if r.Header.Get("Authorization") != strings.TrimSpace(strings.TrimPrefix(right, "Authorization: ")) &&
			len(reached.calls)+len(reached.blobs) > 0 {
			t.Errorf("without the password: %+v", reached)
		}
		if !slices.Contains([]int{200, 201, 400, 401, 404, 500, 503}, w.Code) {
			t.Errorf("answered with %d", w.Code)
		}
		for _, id := range reached.blobs {
			if id == "" || strings.Contains(id, "/") {
				t.Errorf("a blob called %q", id)
			}
		}
	})
}
