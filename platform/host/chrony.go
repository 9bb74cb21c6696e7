package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"cambium/internal/command"
)

// reloadChrony makes chronyd read its sources again. If chronyd is not running, it reads them when it starts, so that
// is not an error.
func reloadChrony(ctx context.Context, socket string) error {
	conn, err := net.Dial("unixgram", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("chronyd: %w", err)
	}
	if err := conn.Close(); err != nil {
		return err
	}
	r, err := command.Run(ctx, command.Cmd{Name: "chronyc", Args: []string{"-h", socket, "reload", "sources"}})
	if err != nil {
		return fmt.Errorf("%w: output %q", err, bytes.TrimSpace(r.Stdout))
	}
	return nil
}
