// Package monitfile reads the control files that releases ship for monit: the grammar of monit 5.2.5, as far as
// releases and operators use it. It only reads text; whether a user, a program or a host exists is not asked here.
package monitfile

import (
	"fmt"
	"regexp"
	"time"
)

// Type is the kind of a service. The numbers are those of monit's status documents.
type Type int

// The kinds of services.
const (
	Filesystem Type = iota
	Directory
	File
	Process
	Host
	System
	Fifo
)

// Mode says what a service's failed tests may do.
type Mode int

// The modes. A passive service gets alerts, and no other action.
const (
	Active Mode = iota
	Passive
	Manual
)

// Check is one service.
type Check struct {
	Type Type
	Name string
	// Source and Line locate the beginning of the check.
	Source string
	Line   int

	// Exactly one of these names what is checked; none does for System.
	Pidfile  string         // of a process
	Matching *regexp.Regexp // of a process's command line
	Path     string         // of a file, directory, FIFO or file system
	Address  string         // of a host

	Start, Stop *Command // nil if the file has none
	Groups      []string
	DependsOn   []string
	Every       int // check each nth cycle only; 0 and 1 are each
	Mode        Mode
	Tests       []Test
}

// Command is a program with its arguments. It is executed without a shell and without a search of PATH.
type Command struct {
	Args []string
	// User and Group are names or numbers; empty: root's.
	User, Group string
	// Timeout bounds a start or stop; 30 s by default.
	Timeout time.Duration
}

// TestKind says which property of a service a test examines.
type TestKind int

// The kinds of tests.
const (
	Connection TestKind = iota // if failed port, unixsocket
	Resource                   // totalmem, mem, cpu, totalcpu, children, loadavg
	Restarts                   // if 3 restarts within 5 cycles
	NotExist                   // if not exist
	Changed                    // if changed pid, ppid, timestamp, size
	Value                      // timestamp, size, space, inode against a value
)

// Operator compares what was measured with the limit of a test.
type Operator int

// The operators.
const (
	Greater Operator = iota
	Less
	Equal
	NotEqual
)

// Test is one "if … then …" of a check.
type Test struct {
	Kind TestKind
	Line int
	// Connection is set for that kind only.
	Connection *Endpoint
	// Subject is the measured quantity, in lower case: totalmem, mem, cpu, totalcpu, children, loadavg(1), loadavg(5),
	// loadavg(15), pid, ppid, timestamp, size, space, inode.
	Subject  string
	Operator Operator
	// Limit is in bytes for sizes, in seconds for a timestamp's age, or in percent if Percent is set.
	Limit   float64
	Percent bool
	// Restarts and Cycles are the numbers of "if Restarts restarts within Cycles cycles".
	Restarts, Cycles int

	Rate Rate
	Then Action
	// Recovery is taken when the test passes again; alert by default, as in monit.
	Recovery     Action
	RecoveryRate Rate
}

// Rate sets the threshold of a test: it must fail in Count of the last Cycles cycles. Both are at least 1.
type Rate struct{ Count, Cycles int }

// Endpoint is the peer of a connection test, and the request to send to it.
type Endpoint struct {
	Host       string // of a port; localhost by default
	Port       int
	Unix       string // the path of a socket, instead of Host and Port
	UDP, TLS   bool
	HTTP       bool   // send a request and read a status
	Request    string // the path of the request; / by default
	HostHeader string
	Timeout    time.Duration // 5 s by default
}

// Verb names the effect of an action. The numbers are those of monit's status documents.
type Verb int

// The verbs.
const (
	Ignore Verb = iota
	Alert
	Restart
	Stop
	Exec
	Unmonitor
	Start
	Monitor
)

var verbs = [...]string{"ignore", "alert", "restart", "stop", "exec", "unmonitor", "start", "monitor"}

func (v Verb) String() string { return verbs[v] }

// Action is taken when a test fails or passes again.
type Action struct {
	Verb Verb
	Exec *Command // of Exec
}

// Error is a mistake in a file. Column is 0 where the mistake is that of a check as a whole, in relation to others.
type Error struct {
	Source       string
	Line, Column int
	Message      string
}

func (e *Error) Error() string {
	if e.Column == 0 {
		return fmt.Sprintf("%s:%d: %s", e.Source, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Source, e.Line, e.Column, e.Message)
}
