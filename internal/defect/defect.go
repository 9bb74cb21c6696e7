// Package defect logs panics without data: the value of a panic, and the arguments in a stack trace, may contain
// secrets.
package defect

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"strings"

	"github.com/sirupsen/logrus"
)

// Report logs a panic from which a deferred function has just recovered, with the functions and lines that led to it.
// It returns the id of the log entry.
func Report(log *logrus.Entry, p any) (id string) {
	id = rand.Text()[:8]
	log.WithFields(logrus.Fields{"id": id, "panic": fmt.Sprintf("%T", p), "stack": stack()}).Error("panic")
	return id
}

// stack returns the call stack of the panic, innermost function first.
func stack() string {
	var pcs [32]uintptr
	// Without Callers, stack, Report and the deferred function.
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	var b strings.Builder
	for {
		f, more := frames.Next()
		if b.Len() > 0 {
			b.WriteString(" < ")
		}
		fmt.Fprintf(&b, "%s %s:%d", f.Function, f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)
		if !more {
			return b.String()
		}
	}
}
