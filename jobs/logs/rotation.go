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

// defaultMaxSize is the size at which a log is rotated when the deployment names none.
const defaultMaxSize = "50M"

// Rotation is the configuration of logrotate for the logs of jobs.
type Rotation struct {
	Root    string // system root
	LogDir  string
	MaxSize string
	// Hook is the stemcell's program that spreads the rotation over the hour; it may be missing.
	Hook string
	Log  *logrus.Entry
}

// userForAll is a directive of logrotate.conf that says as whom logs are rotated: stock stemcells have it.
var userForAll = regexp.MustCompile(`(?m)^[ \t]*su[ \t]`)

// stanzas is the configuration. Without a user, logrotate skips every log in a directory that others can write to, as
// those of jobs are. Root alone names the directories of jobs, and logrotate opens the files in them without
// following links; the directories below are the jobs' to replace, so that what is in them is rotated as their user.
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

// File is logrotate's file for these logs.
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

// RunHook runs the stemcell's hook. A missing or failing one is only logged.
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
