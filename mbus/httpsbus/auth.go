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
	// freeGuesses is the number of wrong passwords of a peer that are answered without a delay. After that the delay
	// doubles each time, up to longestDelay.
	freeGuesses  = 10
	firstDelay   = 250 * time.Millisecond
	longestDelay = 30 * time.Second
	// guessRefill is the time after which a peer may make another wrong guess without a delay.
	guessRefill = time.Minute
	// maxPeers bounds the number of peers whose failures are kept in memory.
	maxPeers = 10000
)

// auth checks passwords, and delays the answers to wrong ones with a backoff for each peer. A correct password is never
// delayed, even if others at the same address have failed.
type auth struct {
	want [sha256.Size]byte // hash of the whole header

	mu       sync.Mutex // guards failures
	failures map[string]failed
}

// failed counts the wrong passwords of a peer. at is when they were last counted.
type failed struct {
	times float64
	at    time.Time
}

func newAuth(user, password string) *auth {
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return &auth{want: sha256.Sum256([]byte(header)), failures: map[string]failed{}}
}

// valid compares hashes in constant time, so that timing reveals neither the password nor its length.
func (a *auth) valid(r *http.Request) bool {
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	return subtle.ConstantTimeCompare(got[:], a.want[:]) == 1
}

// delay counts a wrong password and returns the delay for its answer.
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

// forget keeps the table small. It removes the peers without recent failures or, if that is not enough, all.
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
