// Package monitfile parses the control files for monit that releases contain: the part of the grammar of monit 5.2.5
// that releases and operators use. It only reads text, and does not check whether a user, a program or a host exists.
package monitfile

import (
	"fmt"
	"regexp"
	"time"
)

// Type is the kind of a service. The values are those of monit's status documents.
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

// Mode limits the actions that the failed tests of a service may take.
type Mode int

// The modes. A passive service only gets alerts.
const (
	Active Mode = iota
	Passive
	Manual
)

// Check is a service with its tests.
type Check struct {
	Type Type
	Name string
	// Source and Line say where the check begins.
	Source string
	Line   int

	// One of these fields identifies the checked object, except for System.
	Pidfile  string         // of a process
	Matching *regexp.Regexp // matches the process's command line
	Path     string         // path of a file, directory, FIFO or file system
	Address  string         // address of a host

	Start, Stop *Command // nil if the control file has none
	Groups      []string
	DependsOn   []string
	Every       int // check only in each nth cycle; 0 and 1 mean each cycle
	Mode        Mode
	Tests       []Test
}

// Command is a program with its arguments. It is executed without a shell and without searching PATH.
type Command struct {
	Args []string
	// User and Group are names or numbers; empty means root's.
	User, Group string
	// Timeout bounds a start or stop. The default is 30 s.
	Timeout time.Duration
}

// TestKind is the property of a service that a test checks.
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

// Operator compares a measured value with the limit of a test.
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
	// Connection is set only for tests of kind Connection.
	Connection *Endpoint
	// Subject is the measured quantity, in lower case: totalmem, mem, cpu, totalcpu, children, loadavg(1), loadavg(5),
	// loadavg(15), pid, ppid, timestamp, size, space, inode.
	Subject  string
	Operator Operator
	// Limit is in bytes for sizes, in seconds for the age of a timestamp, or in percent if Percent is set.
	Limit   float64
	Percent bool
	// Restarts and Cycles are set for "if Restarts restarts within Cycles cycles".
	Restarts, Cycles int

	Rate Rate
	Then Action
	// Recovery is the action when the test passes again. The default is alert, as in monit.
	Recovery     Action
	RecoveryRate Rate
}

// Rate is the threshold of a test, which fires if it fails in Count of the last Cycles cycles. Both are at least 1.
type Rate struct{ Count, Cycles int }

// Endpoint is the peer of a connection test and the request for it.
type Endpoint struct {
	Host       string // host of Port; localhost by default
	Port       int
	Unix       string // path of a socket, instead of Host and Port
	UDP, TLS   bool
	HTTP       bool   // send an HTTP request and check the status
	Request    string // path of the request; / by default
	HostHeader string
	Timeout    time.Duration // 5 s by default
}

// Verb is the kind of an action. The values are those of monit's status documents.
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

// Action is done when a test fails or passes again.
type Action struct {
	Verb Verb
	Exec *Command // program of Exec
}

// Error is an error in a control file. Column is 0 if the error concerns a check as a whole.
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
