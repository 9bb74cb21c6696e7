package filesystem

import (
	"bytes"
	"fmt"
)

// passes parses the progress of e2fsck: lines "PASS CURRENT MAXIMUM DEVICE" among its messages.
type passes struct {
	percent func(int)
	rest    []byte // of an incomplete line
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

// passEnds lists the percentages at which the five passes of e2fsck end, according to its own estimate.
var passEnds = [...]int{0, 70, 90, 92, 95, 100}

// percentOf parses the progress in a line. Most lines have none.
func percentOf(line string) (int, bool) {
	var pass, current, maximum int
	if n, _ := fmt.Sscanf(line, "%d %d %d ", &pass, &current, &maximum); n != 3 || pass < 1 || pass >= len(passEnds) ||
		maximum < 1 ||
		current < 0 ||
		current > maximum {
		return 0, false
	}
	begin, end := passEnds[pass-1], passEnds[pass]
	return begin + (end-begin)*current/maximum, true
}
