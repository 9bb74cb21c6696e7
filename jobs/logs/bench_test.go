//go:build bench

package logs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/contest"
)

// BenchmarkCollect compares packing 1 GiB of logs with tar -czf. The figure is a ratio within one
// run.
func BenchmarkCollect(b *testing.B) {
	c := collector(b)
	// One piece is far larger than what a compressor remembers.
	var piece bytes.Buffer
	for line := 0; piece.Len() < 16<<20; line++ {
		fmt.Fprintf(&piece, "2026-11-15T02:%02d:%02d.%06dZ INFO - request action=get_state took=%dµs request=%x outcome=ok\n", line/60%60, line%60, line*7919%1000000, line*31%5000, line*2654435761)
	}
	for n := range 8 {
		content := strings.NewReader(strings.Repeat(piece.String(), 8))
		file, err := os.Create(filepath.Join(c.Dirs.SysLog(), fmt.Sprintf("job%d.log", n)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(file, content); err != nil {
			b.Fatal(err)
		}
		file.Close()
	}
	shell := func(command string) func() error {
		return func() error {
			out, err := exec.Command("sh", "-c", command, c.Dirs.SysLog()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	contest.Run(b, 3,
		contest.Entrant{Name: "collect", Run: func() error {
			return c.Collect(b.Context(), Selection{Types: "job"}, io.Discard)
		}},
		// tar recognizes /dev/null and then reads nothing.
		contest.Entrant{Name: "tar", Run: shell(`tar -czf - -C "$0" . | cat >/dev/null`)})
}
