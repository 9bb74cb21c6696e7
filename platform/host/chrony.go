package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The part of chronyd's control protocol (version 6) for "reload sources".
const (
	chronyVersion       = 6
	chronyRequest       = 1
	chronyReply         = 2
	chronyReloadSources = 70
	chronyLength        = 28 // of the reply, to which the request is padded
)

// reloadChrony makes chronyd read its sources again. If chronyd is not running, it reads them when it starts, so that
// is not an error.
func reloadChrony(ctx context.Context, socket string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("chronyd: %w", err)
		}
	}()
	// chronyd must be able to write its reply to this socket. Only root and chronyd can enter the directory.
	own := filepath.Join(filepath.Dir(socket), fmt.Sprintf("agent.%d.sock", os.Getpid()))
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	conn, err := net.DialUnix("unixgram", &net.UnixAddr{Name: own, Net: "unixgram"},
		&net.UnixAddr{Name: socket, Net: "unixgram"})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		if _, gone := os.Lstat(own); gone == nil {
			return os.Remove(own)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(), os.Remove(own)) }()
	if err := allowReplies(own); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails only when closed
	defer stop()

	request := make([]byte, chronyLength)
	sequence := uint32(time.Now().UnixNano())
	request[0], request[1] = chronyVersion, chronyRequest
	binary.BigEndian.PutUint16(request[4:], chronyReloadSources)
	binary.BigEndian.PutUint32(request[8:], sequence)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	for {
		reply := make([]byte, 1024)
		n, err := conn.Read(reply)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if n < chronyLength || reply[1] != chronyReply || binary.BigEndian.Uint32(reply[16:]) != sequence {
			continue // a reply to another request
		}
		if status := binary.BigEndian.Uint16(reply[8:]); status != 0 {
			return fmt.Errorf("refused to reload its sources (status %d)", status)
		}
		return nil
	}
}

// allowReplies lets chronyd write to the agent's socket. chronyd owns the directory and may have replaced the socket,
// so this changes only a socket of the agent and does not follow links.
func allowReplies(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s was replaced: it is not the agent's socket", path)
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o666)
}
