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
	// freeGuesses is the number of wrong passwords of one peer that are answered without delay; after
	// them the delay doubles each time, up to longestDelay.
	freeGuesses  = 10
	firstDelay   = 250 * time.Millisecond
	longestDelay = 30 * time.Second
	// guessRefill is the time after which a peer may make one more wrong guess without delay.
	guessRefill = time.Minute
	// maxPeers bounds the memory of failures.
	maxPeers = 10000
)

// auth checks passwords, and answers wrong ones with a growing delay (backoff by peer). A correct password
// is never delayed, whatever other callers at that address do.
type auth struct {
	want [sha256.Size]byte // of the whole header

	mu       sync.Mutex // guards failures
	failures map[string]failed
}

// failed counts the wrong passwords of a peer, and when it was last updated.
type failed struct {
	times float64
	at    time.Time
}

func newAuth(user, password string) *auth {
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return &auth{want: sha256.Sum256([]byte(header)), failures: map[string]failed{}}
}

// valid compares hashes in constant time, so that neither the password nor its length can be timed.
func (a *auth) valid(r *http.Request) bool {
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	return subtle.ConstantTimeCompare(got[:], a.want[:]) == 1
}

// delay counts a wrong password and returns the delay of its answer.
func (a *auth) delay(peer string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, known := a.failures[peer]
	if !known {
		a.forget(now)
	}
	f.times = max(0, f.times-float64(now.Sub(f.at))/float64(guessRefill)) + 1
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

// forget bounds the table: peers without recent failures are removed first, then all.
func (a *auth) forget(now time.Time) {
	if len(a.failures) < maxPeers {
		return
	}
	for peer, f := range a.failures {
		if now.Sub(f.at) > freeGuesses*guessRefill {
			delete(a.failures, peer)
		}
	}
	if len(a.failures) >= maxPeers {
		clear(a.failures)
	}
}
