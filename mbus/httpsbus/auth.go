package httpsbus

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

const (
	// freeGuesses wrong passwords of one peer are answered at once; behind them each is answered twice as
	// late as the one before, up to longestDelay.
	freeGuesses  = 10
	firstDelay   = 250 * time.Millisecond
	longestDelay = 30 * time.Second
	// forgiveness is how long a peer takes to win one guess back.
	forgiveness = time.Minute
	// maxPeers bounds the memory of failures.
	maxPeers = 10000
)

// auth checks passwords, and answers wrong ones later and later. The password is always compared: a caller
// that knows it gets in, whatever others at its address do.
type auth struct {
	want [sha256.Size]byte // of the whole header

	mu       sync.Mutex // guards failures
	failures map[string]failed
}

// failed is how often a peer was wrong, and when that was last counted.
type failed struct {
	times float64
	at    time.Time
}

func newAuth(user, password string) *auth {
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return &auth{want: sha256.Sum256([]byte(header)), failures: map[string]failed{}}
}

// right compares sums of equal length, so that not even the length shows in the time it takes.
func (a *auth) right(r *http.Request) bool {
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	return subtle.ConstantTimeCompare(got[:], a.want[:]) == 1
}

// delay counts a wrong password and returns how long its answer is to wait.
func (a *auth) delay(peer string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, known := a.failures[peer]
	if !known {
		a.forget(now)
	}
	f.times = max(0, f.times-float64(now.Sub(f.at))/float64(forgiveness)) + 1
	f.at = now
	a.failures[peer] = f
	delay := firstDelay
	for range int(min(f.times-freeGuesses, 10)) {
		delay *= 2
	}
	if f.times <= freeGuesses {
		return 0
	}
	return min(delay, longestDelay)
}

// forget makes room: peers that have been quiet for long go, and if that does not help, all.
func (a *auth) forget(now time.Time) {
	if len(a.failures) < maxPeers {
		return
	}
	for peer, f := range a.failures {
		if now.Sub(f.at) > freeGuesses*forgiveness {
			delete(a.failures, peer)
		}
	}
	if len(a.failures) >= maxPeers {
		clear(a.failures)
	}
}
