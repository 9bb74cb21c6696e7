package defect

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func breaks(secret string) { panic("value " + secret) }

func TestAReportHasTheWayAndNotTheValue(t *testing.T) {
	var out bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&out)
	id := ""
	func() {
		defer func() { id = Report(logrus.NewEntry(logger), recover()) }()
		breaks("hunter2")
	}()
	for _, want := range []string{"id=" + id, "panic=string", "internal/defect.breaks defect_test.go:11",
		"TestAReportHasTheWayAndNotTheValue"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want %q in it", out.String(), want)
		}
	}
	if len(id) != 8 || strings.Contains(out.String(), "hunter2") || strings.Contains(out.String(), "0x") {
		t.Errorf("id %q, log %q; want no value and no argument", id, out.String())
	}
}
