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
		{func(e *logrus.Entry) { e.Info("agent starts") }, `\[agent\] TIME INFO - agent starts`},
		{func(e *logrus.Entry) {
			e.WithField("component", "boot").WithFields(logrus.Fields{"b": 2, "a": "x y"}).Warn("late")
		}, `\[boot\] TIME WARN - late a="x y" b=2`},
		{func(e *logrus.Entry) { e.WithError(errors.New("two\nlines")).Error("bad\r\nluck") }, `\[agent\] TIME ERROR - bad; luck error="two\\nlines"`},
		{func(e *logrus.Entry) { e.Debug("detail") }, ``},
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
