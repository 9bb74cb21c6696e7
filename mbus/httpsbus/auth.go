package httpsbus

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"sync"
	"time"
)

type verdict int

const (
	accepted verdict = iota
	refused
	throttled
)

const (
	// failureBurst wrong passwords may come from one address in a row, then one per
	// failureEvery. While an address is throttled its passwords are not looked at, right or
	// wrong: otherwise guessing would go on at full speed.
	failureBurst = 10
	failureEvery = time.Second
	// maxAddresses bounds the memory of failures.
	maxAddresses = 10000
)

// auth checks passwords and slows down who guesses them.
type auth struct {
	want [sha256.Size]byte // of the whole header

	mu       sync.Mutex // guards failures
	failures map[string]*bucket
}

// bucket holds the tries that an address has left.
type bucket struct {
	left float64
	at   time.Time
}

func newAuth(user, password string) *auth {
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	return &auth{want: sha256.Sum256([]byte(header)), failures: map[string]*bucket{}}
}

func (a *auth) check(r *http.Request, now time.Time) verdict {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	tries := a.failures[host]
	if tries != nil {
		tries.left = min(failureBurst, tries.left+float64(now.Sub(tries.at))/float64(failureEvery))
		tries.at = now
		if tries.left < 1 {
			return throttled
		}
	}
	// Sums of equal length, so that not even the length shows in the time it takes.
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	if subtle.ConstantTimeCompare(got[:], a.want[:]) == 1 {
		return accepted
	}
	if tries == nil {
		a.forget(now)
		tries = &bucket{left: failureBurst, at: now}
		a.failures[host] = tries
	}
	tries.left--
	return refused
}

// forget makes room: addresses that have been quiet for long go, and if that does not help, all.
func (a *auth) forget(now time.Time) {
	if len(a.failures) < maxAddresses {
		return
	}
	for host, tries := range a.failures {
		if now.Sub(tries.at) > failureBurst*failureEvery {
			delete(a.failures, host)
		}
	}
	if len(a.failures) >= maxAddresses {
		clear(a.failures)
	}
}
