package logging

import (
	"bytes"
	"errors"
	"regexp"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestOneLinePerEntry(t *testing.T) {
	logger := logrus.StandardLogger()
	out, formatter, level := logger.Out, logger.Formatter, logger.Level
	t.Cleanup(func() { logger.SetOutput(out); logger.SetFormatter(formatter); logger.SetLevel(level) })
	for _, c := range []struct {
		log  func(*logrus.Entry)
		want string
	}{
		{func(e *logrus.Entry) { e.Info("agent starting") }, `\[agent\] TIME INFO - agent starting`},
		{func(e *logrus.Entry) {
			e.WithField("component", "boot").WithFields(logrus.Fields{"b": 2, "a": "x y"}).Warn("late")
		}, `\[boot\] TIME WARN - late a="x y" b=2`},
		{func(e *logrus.Entry) { e.WithError(errors.New("two\nlines")).Error("bad\r\nluck") }, `\[agent\] TIME ERROR - bad; luck error="two\\nlines"`},
		{func(e *logrus.Entry) { e.Debug("detail") }, ``},
		// A file may be called anything. 0x9b alone and U+009B begin an escape sequence, too; U+202E reverses a line.
		{func(e *logrus.Entry) { e.WithField("path", "\x1b]0;x\a.log").Warn("a\x1b[2Jb") },
			`\[agent\] TIME WARN - a \[2Jb path="\\x1b\]0;x\\a.log"`},
		{func(e *logrus.Entry) { e.WithError(errors.New("\x9b2J")).Warn("a\x9b2J\u009b2J\u202eb") },
			`\[agent\] TIME WARN - a�2J 2J b error="\\x9b2J"`},
		{func(e *logrus.Entry) { e.WithField("path", "\u202eü").Warn("ü") },
			`\[agent\] TIME WARN - ü path="\\u202eü"`},
	} {
		var b bytes.Buffer
		c.log(SetUp(&b))
		want := ""
		if c.want != "" {
			want = regexp.MustCompile("TIME").ReplaceAllString(c.want, `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`) + "\n"
		}
		if !regexp.MustCompile("^" + want + "$").MatchString(b.String()) {
			t.Errorf("got %q, want %s", b.String(), want)
		}
	}
}
