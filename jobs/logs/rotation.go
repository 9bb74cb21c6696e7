package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"cambium/internal/command"

	"github.com/sirupsen/logrus"
)

// defaultMaxSize is the size at which logs are rotated if the deployment does not set one.
const defaultMaxSize = "50M"

// Rotation configures logrotate for the logs of jobs.
type Rotation struct {
	Root    string // system root
	LogDir  string
	MaxSize string
	// Hook is the stemcell's program that spreads the rotation over the hour; it may not exist.
	Hook string
	Log  *logrus.Entry
}

// userForAll matches the directive in logrotate.conf that sets the user for rotation. Stock stemcells have it.
var userForAll = regexp.MustCompile(`(?m)^[ \t]*su[ \t]`)

// stanzas returns the configuration. Without a user, logrotate would skip logs in directories that others can write to,
// as those of jobs. Root names only the directories of jobs, and logrotate does not follow links to the files in them.
// Jobs can replace the directories below, so files there are rotated as the jobs' user.
func (r Rotation) stanzas(size string) (string, error) {
	global, err := os.ReadFile(filepath.Join(r.Root, "/etc/logrotate.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	options := "  missingok\n  rotate 7\n  compress\n  copytruncate\n  size=" + size + "\n}\n"
	below := func(depth int) string {
		dir := r.LogDir + strings.Repeat("/*", depth)
		return dir + "/*.log " + dir + "/.*.log "
	}
	if userForAll.Match(global) {
		return below(0) + below(1) + below(2) + "{\n" + options, nil
	}
	return below(0) + below(1) + "{\n  su root root\n" + options + below(2) + "{\n  su vcap vcap\n" + options, nil
}

var validSize = regexp.MustCompile(`^[0-9]+[kMG]?$`)

// File returns the path and content of logrotate's file for these logs.
func (r Rotation) File() (path string, content []byte, err error) {
	size := r.MaxSize
	if size == "" {
		size = defaultMaxSize
	}
	// The text is copied into a file that a root program interprets.
	if !validSize.MatchString(size) {
		return "", nil, fmt.Errorf("log rotation: %q is not a valid size", size)
	}
	text, err := r.stanzas(size)
	if err != nil {
		return "", nil, fmt.Errorf("log rotation: %w", err)
	}
	return filepath.Join(r.Root, "/etc/logrotate.d/vcap"), []byte(text), nil
}

// RunHook runs the stemcell's hook. If that is missing or fails, it only logs.
func (r Rotation) RunHook(ctx context.Context) {
	if r.Hook == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := command.Run(ctx, command.Cmd{Name: r.Hook}); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.WithError(err).Warn("cannot set up log rotation")
	}
}
