// Package logging sets up the log of the agent: one line for each entry, in the shape that tools
// around BOSH search for.
package logging

import (
	"bytes"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sirupsen/logrus"

	"cambium/internal/oneline"
)

// lineFormatter writes one line for each entry:
//
//	[component] 2026-01-02T03:04:05.678901Z ERROR - message key=value
type lineFormatter struct{}

// levelNames are the words of cloudfoundry/bosh-agent.
var levelNames = map[logrus.Level]string{
	logrus.PanicLevel: "ERROR", logrus.FatalLevel: "ERROR", logrus.ErrorLevel: "ERROR",
	logrus.WarnLevel: "WARN", logrus.InfoLevel: "INFO", logrus.DebugLevel: "DEBUG", logrus.TraceLevel: "DEBUG",
}

// Format implements logrus.Formatter.
func (lineFormatter) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	component, _ := e.Data["component"].(string)
	if component == "" {
		component = "agent"
	}
	at := e.Time.UTC().Format("2006-01-02T15:04:05.000000Z")
	fmt.Fprintf(&b, "[%s] %s %s - %s", component, at, levelNames[e.Level], oneline.Of(e.Message))
	keys := make([]string, 0, len(e.Data))
	for k := range e.Data {
		if k != "component" {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, " %s=%s", k, quoted(fmt.Sprint(e.Data[k])))
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// quoted escapes what a value must not do to a log or a terminal: it may be a file name, which a job chose.
func quoted(value string) string {
	unsafe := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \"=", r) }
	if value == "" || !utf8.ValidString(value) || strings.ContainsFunc(value, unsafe) {
		return strconv.Quote(value)
	}
	return value
}

// SetUp configures logrus's standard logger, because go-diskfs writes to that one.
func SetUp(w io.Writer) *logrus.Entry {
	logger := logrus.StandardLogger()
	logger.SetOutput(w)
	logger.SetFormatter(lineFormatter{})
	logger.SetLevel(logrus.InfoLevel)
	return logrus.NewEntry(logger)
}
