package observe

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestTheTimeOfAServerThatIsNotTrusted: a blobstore's certificate is signed by the deployment's own authority, and to a
// clock that is a year off every certificate is invalid.
func TestTheTimeOfAServerThatIsNotTrusted(t *testing.T) {
	const off = 365 * 24 * time.Hour
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header["Authorization"])+len(r.Cookies()) > 0 {
			t.Error("a server that is not trusted gets credentials")
		}
		w.Header().Set("Date", time.Now().Add(-off).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	got := sample(t.Context(), server.URL, time.Minute)
	if got.Err != "" || (got.Offset-off).Abs() > time.Minute {
		t.Errorf("got %v %s, want the clock to be %v ahead", got.Offset, got.Err, off)
	}
}
