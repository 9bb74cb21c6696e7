// Package support implements `agent support`, which writes one archive for a person who cannot log in to the machine:
// status, timeline, findings of the doctor, redacted settings, journals, and the state of network, disks and units. It
// works without a running agent. The archive is limited in size and holds no secrets.
package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
)

// Version is the agent's version, for the archive.
type Version string

// Run runs `agent support`.
func (v Version) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("support", cli.Help{Arguments: "FILE",
		Purpose: `Writes one archive (tar, gzip) for support: status, timeline, findings of the doctor, redacted
settings and agent.json, journals of this and the last boots, network, disks, mounts, units and
versions. Works without a running agent; holds no secret; at most 32 MiB before compression. FILE -
is the standard output. Exit codes: 0 written, 1 not written, 2 usage.`,
		Examples: []string{"agent support /tmp/vm.tgz", "agent support - | ssh me@desk 'cat >vm.tgz'"}}, stdout, stderr)
	o := options{version: string(v)}
	flags.StringVar(&o.config, "C", "", "`AGENT_JSON`; bosh/agent.json below BASE if not given")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	flags.StringVar(&o.status, "file", vcap.RunDir.Status(), "status `FILE` to read")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long to wait for each remote host and each program")
	if code, ok := flags.Parse(args, 1, 1); !ok {
		return code
	}
	o.dirs = vcap.New(*base)
	if o.config == "" {
		o.config = o.dirs.AgentJSON()
	}
	files := collect(ctx, o)
	if left := leftOut(files); len(left) > 0 && os.Geteuid() != 0 {
		cli.PrintFolded(stderr, cli.Width(stderr), "agent support: ", len("agent support: "),
			"not run as root; left out: "+strings.Join(left, ", "))
	}
	archive, err := pack(files, time.Now())
	if err == nil {
		err = put(flags.Arg(0), archive, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "agent support:", err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}

type options struct {
	version, config, status string
	dirs                    vcap.Dirs
	timeout                 time.Duration
}

// put writes a new file. It never replaces one, because that may be the archive of an earlier failure.
func put(path string, data []byte, stdout io.Writer) error {
	if path == "-" {
		_, err := stdout.Write(data)
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: remove it or choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Limits of the archive before compression.
const (
	maxFile  = 2 << 20
	maxTotal = 32 << 20
)

// file is an entry of the archive.
type file struct {
	name string
	data []byte
	// the reason why it is unavailable; data contains it, too
	missing error
}

// absent returns an entry for data that is unavailable.
func absent(name string, err error) file {
	return file{name: name, data: []byte(err.Error() + "\n"), missing: err}
}

// leftOut returns the names of the unavailable files.
func leftOut(files []file) (names []string) {
	for _, f := range files {
		if f.missing != nil {
			names = append(names, f.name)
		}
	}
	return names
}

// bounded cuts the beginning of data that is too long, since the last lines of a log are the most useful.
func bounded(data []byte) []byte {
	if len(data) <= maxFile {
		return data
	}
	const notice = "… truncated at the beginning …\n"
	return append([]byte(notice), data[len(data)-maxFile+len(notice):]...)
}

// pack returns the archive. left-out.txt lists the files that were unavailable or did not fit into maxTotal.
func pack(files []file, now time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	total := 0
	var left bytes.Buffer
	write := func(f file) error {
		if err := w.WriteHeader(&tar.Header{Name: "support/" + f.name, Mode: 0o600, Size: int64(len(f.data)),
			ModTime: now}); err != nil {
			return err
		}
		_, err := w.Write(f.data)
		return err
	}
	for _, f := range files {
		f.data = bounded(f.data)
		if f.missing != nil {
			fmt.Fprintf(&left, "%s: %v\n", f.name, f.missing)
		}
		if total += len(f.data); total > maxTotal {
			fmt.Fprintf(&left, "%s: the archive is full\n", f.name)
			continue
		}
		if err := write(f); err != nil {
			return nil, err
		}
	}
	if left.Len() > 0 {
		if err := write(file{name: "left-out.txt", data: left.Bytes()}); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
