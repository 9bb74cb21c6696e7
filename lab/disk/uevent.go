package disk

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Event is a kernel event about a block device.
type Event struct {
	Action string // "add", "remove" or "change"
	Name   string // kernel name, such as "loop3p1"
	Major  uint32
	Minor  uint32
}

// Watch calls f for every block device event until ctx ends. Events after its return are not missed.
func Watch(ctx context.Context, f func(Event)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("kernel events: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("kernel events: %w", err)
	}
	// An os.File, so that closing it ends the read.
	file := os.NewFile(uintptr(fd), "uevent")
	context.AfterFunc(ctx, func() { _ = file.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := file.Read(buffer)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				continue // ENOBUFS: events were lost, the next ones are not
			}
			if e, ok := parseEvent(buffer[:n]); ok {
				f(e)
			}
		}
	}()
	return nil
}

// parseEvent parses "action@path\0KEY=value\0…".
func parseEvent(message []byte) (Event, bool) {
	var e Event
	values := map[string]string{}
	for part := range bytes.SplitSeq(message, []byte{0}) {
		if key, value, ok := strings.Cut(string(part), "="); ok {
			values[key] = value
		}
	}
	major, err1 := strconv.ParseUint(values["MAJOR"], 10, 32)
	minor, err2 := strconv.ParseUint(values["MINOR"], 10, 32)
	e.Action, e.Name, e.Major, e.Minor = values["ACTION"], values["DEVNAME"], uint32(major), uint32(minor)
	return e, values["SUBSYSTEM"] == "block" && e.Name != "" && err1 == nil && err2 == nil
}
