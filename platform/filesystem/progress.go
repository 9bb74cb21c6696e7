package filesystem

import (
	"bytes"
	"fmt"
)

// passes reads the progress that e2fsck writes, a line "PASS CURRENT MAXIMUM DEVICE" at a time, among its messages.
type passes struct {
	percent func(int)
	rest    []byte // of a line that has not ended
	last    int
}

func (p *passes) Write(data []byte) (int, error) {
	p.rest = append(p.rest, data...)
	for {
		line, rest, ended := bytes.Cut(p.rest, []byte("\n"))
		if !ended {
			break
		}
		p.rest = rest
		if done, ok := percentOf(string(line)); ok && done > p.last {
			p.last = done
			p.percent(done)
		}
	}
	if len(p.rest) > maxLine {
		p.rest = nil
	}
	return len(data), nil
}

// maxLine is longer than any line of progress.
const maxLine = 4096

// passEnds are the percentages at which the five passes of e2fsck end, by its own estimate of their shares.
var passEnds = [...]int{0, 70, 90, 92, 95, 100}

// percentOf parses the progress in one line of e2fsck; most of its lines have none.
func percentOf(line string) (int, bool) {
	var pass, current, maximum int
	if n, _ := fmt.Sscanf(line, "%d %d %d ", &pass, &current, &maximum); n != 3 || pass < 1 || pass >= len(passEnds) || maximum < 1 || current < 0 || current > maximum {
		return 0, false
	}
	begin, end := passEnds[pass-1], passEnds[pass]
	return begin + (end-begin)*current/maximum, true
}
