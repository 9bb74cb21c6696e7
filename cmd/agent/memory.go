package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gcPercent lets the heap grow by less than Go's default before it is collected: the agent shares
// a machine with jobs, and has time.
const gcPercent = 50

// bootPercent is for the boot, which has not.
const bootPercent = 400

// collect sets how eagerly the heap is collected, unless the environment does.
func collect(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// afterBoot is how long background steps get before memory is given back.
const afterBoot = time.Second

// again is when memory is given back next: often enough that what one task needed is not held for
// long, seldom enough to cost nothing.
const again = 5 * time.Minute

// giveBack returns what the agent does not need any more to the system, once the boot is over and
// then from time to time.
func giveBack(ctx context.Context) {
	collect(gcPercent)
	for pause := afterBoot; ; pause = again {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		debug.FreeOSMemory()
		dropProgram()
	}
}

// dropProgram unmaps what of the program's own file was touched, which the kernel maps again page
// by page as it is needed: most of it was needed only once. Parts that were written to stay.
func dropProgram() {
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer func() { _ = maps.Close() }()
	for _, part := range programParts(maps) {
		// Advice only: that it is not followed costs memory and nothing else.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, part[0], part[1]-part[0], unix.MADV_DONTNEED)
	}
}

// programParts lists the address ranges of smaps that are read-only, backed by the program's file,
// and hold nothing of their own.
func programParts(smaps io.Reader) (parts [][2]uintptr) {
	var current [2]uintptr
	program := ""
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 3 && fields[0] == "Anonymous:":
			if current[0] != 0 && fields[1] == "0" {
				parts = append(parts, current)
			}
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			// start-end rwxp offset device inode path
			current = [2]uintptr{}
			if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
				continue
			}
			if program == "" {
				program = fields[5] // the first mapping is the program's
			}
			first, last, _ := strings.Cut(fields[0], "-")
			start, err1 := strconv.ParseUint(first, 16, 64)
			end, err2 := strconv.ParseUint(last, 16, 64)
			if fields[5] == program && fields[1][1] != 'w' && err1 == nil && err2 == nil && end > start {
				current = [2]uintptr{uintptr(start), uintptr(end)}
			}
		}
	}
	return parts
}
