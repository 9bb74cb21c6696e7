// Package logging configures the agent's log. Each entry is one line in the format that tools around BOSH search for.
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

// levelNames has the level names of cloudfoundry/bosh-agent.
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

// quoted escapes characters that would break a log line or control a terminal. A value may be a file name that a job
// chose.
func quoted(value string) string {
	unsafe := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \"=", r) }
	if value == "" || !utf8.ValidString(value) || strings.ContainsFunc(value, unsafe) {
		return strconv.Quote(value)
	}
	return value
}

// SetUp configures logrus's standard logger, which go-diskfs also uses, and returns an entry of it.
func SetUp(w io.Writer) *logrus.Entry {
	logger := logrus.StandardLogger()
	logger.SetOutput(w)
	logger.SetFormatter(lineFormatter{})
	logger.SetLevel(logrus.InfoLevel)
	return logrus.NewEntry(logger)
}
