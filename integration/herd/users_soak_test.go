//go:build soak

package herd

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cambium/internal/eventually"
)

// usersRow is a server's processor time by the number of users in its file, which a busy machine hardly changes.
type usersRow struct {
	Users           int
	Bytes           int
	Login, Refusal  float64 // seconds
	Load            string
	When, Commit    string
	Logins, Refused int
}

// TestSoakUsers measures what a log-in costs a server whose file has many users, most of whom are not there.
func TestSoakUsers(t *testing.T) {
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			row := measureUsers(t, n)
			t.Logf("%+v", row)
			if t.Failed() {
				return
			}
			r := load(t)
			r.Users = slices.DeleteFunc(r.Users, func(other usersRow) bool { return other.Users == n })
			r.Users = append(r.Users, row)
			save(t, r)
		})
	}
}

func measureUsers(t *testing.T, n int) usersRow {
	const known, unknown = 80, 40
	h := newHerd(t, known+unknown, 2, bySubject)
	h.cluster.nodes = h.cluster.nodes[:1] // one server: each agent of the other two would only ask it, too
	for i := range h.members {
		h.members[i].URLs = h.cluster.urls()
	}
	users := ids(h.members[:known])
	for i := known; i < n; i++ {
		users = append(users, fmt.Sprintf("7e9a35c4-5f1e-4c7e-9a35-%012d", i))
	}
	h.cluster.write(h.cluster.nodes[0].name+".conf", []byte(h.cluster.config(h.cluster.nodes[0])))
	h.cluster.setUsers(users)
	h.up()
	row := usersRow{Users: n, Bytes: h.cluster.fileBytes, Load: load1(), When: time.Now().UTC().Format(time.DateOnly),
		Commit: commit(t)}
	// Attempts that an agent gave up cost the server as much.
	phase := func(start []member, ended func() bool) (each float64, attempts int) {
		work, before := h.serverTime(), h.cluster.state(h.cluster.nodes[0]).TotalConnections
		h.flocks.start(start)
		eventually.Within(t, patience, "log-ins", func() error {
			if !ended() {
				return errors.New("some are missing")
			}
			return nil
		})
		attempts = int(h.cluster.state(h.cluster.nodes[0]).TotalConnections - before)
		return (h.serverTime() - work).Seconds() / float64(attempts), attempts
	}
	row.Login, row.Logins = phase(h.members[:known], func() bool {
		return h.cluster.state(h.cluster.nodes[0]).Connections >= known+2 // Director and Health Monitor
	})
	row.Refusal, row.Refused = phase(h.members[known:], func() bool {
		row.Refused += h.flocks.report().Failures[refusal]
		return row.Refused >= unknown/2
	})
	return row
}
