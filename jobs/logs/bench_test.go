//go:build bench

package logs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cambium/internal/contest"
)

// BenchmarkCollect compares packing 1 GiB of logs with tar -czf. The figure is a ratio within one
// run.
func BenchmarkCollect(b *testing.B) {
	c := collector(b)
	for n := range 8 {
		file, err := os.Create(filepath.Join(c.Dirs.SysLog(), fmt.Sprintf("job%d.log", n)))
		if err != nil {
			b.Fatal(err)
		}
		w := bufio.NewWriterSize(file, 1<<20)
		for size, line := 0, 0; size < 128<<20; line++ {
			k, _ := fmt.Fprintf(w, "2026-11-15T02:%02d:%02d.%06dZ INFO - request action=get_state took=%dµs request=%x outcome=ok\n", line/60%60, line%60, line*7919%1000000, line*31%5000, line*2654435761)
			size += k
		}
		if err := w.Flush(); err != nil {
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
		// tar recognises /dev/null and then reads nothing.
		contest.Entrant{Name: "tar", Run: shell(`tar -czf - -C "$0" . | cat >/dev/null`)})
}
