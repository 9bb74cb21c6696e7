//go:build nightly

package metrics

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestNightlyPrometheus: Debian's promtool accepts metrics and alerts, and the alerts fire for what they name.
func TestNightlyPrometheus(t *testing.T) {
	var text bytes.Buffer
	write(&text, everything())
	for _, c := range []struct {
		input io.Reader
		args  []string
	}{
		{&text, []string{"check", "metrics"}},
		{nil, []string{"check", "rules", "../../../docs/monitoring/alerts.yml"}},
		{nil, []string{"test", "rules", "testdata/alerts_test.yml"}},
	} {
		promtool := exec.CommandContext(t.Context(), "promtool", c.args...)
		promtool.Stdin = c.input
		if out, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v: %s", strings.Join(c.args, " "), err, out)
		}
	}
}

// TestNightlyNodeExporter: Debian's node_exporter serves the file.
func TestNightlyNodeExporter(t *testing.T) {
	dir := t.TempDir()
	var text bytes.Buffer
	write(&text, everything())
	if err := os.WriteFile(filepath.Join(dir, "cambium.prom"), text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exporter := exec.CommandContext(ctx, "prometheus-node-exporter", "--web.listen-address=127.0.0.1:0",
		"--collector.disable-defaults",
		"--collector.textfile", "--collector.textfile.directory="+dir)
	said, err := exporter.StderrPipe()
	if err == nil {
		err = exporter.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = exporter.Wait() }() // it is killed
	listens := regexp.MustCompile(`address=(127\.0\.0\.1:[1-9][0-9]*)`)
	lines := bufio.NewScanner(said)
	address := ""
	for address == "" && lines.Scan() {
		if found := listens.FindStringSubmatch(lines.Text()); found != nil {
			address = found[1]
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	served, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cambium_agent_running 1\n", "node_textfile_scrape_error 0\n",
		`cambium_agent_state{state="ready"} 1`} {
		if !strings.Contains(string(served), want) {
			t.Errorf("node_exporter does not serve %q:\n%s", want, served)
		}
	}
}
