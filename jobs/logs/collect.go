// Package logs packs the logs of a machine into an archive, and configures their rotation. It reads, as root,
// directories that jobs can write to, and so it trusts nothing in them.
package logs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cambium/internal/rootdir"
	"cambium/internal/thread"
	"cambium/internal/vcap"

	"github.com/klauspost/compress/gzip"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Collector reads the log directories of a machine.
type Collector struct {
	Dirs vcap.Dirs
	// Root is the system root.
	Root string
	Log  *logrus.Entry
	// Journal, if set, writes the agent's journal since the machine's boot.
	Journal func(ctx context.Context, w io.Writer) error
	// Progress, if set, is called if a collection takes long. The function that it returns is called with the progress,
	// and with the zero value at the end.
	Progress func() func(Progress)
}

// nice is added to the agent's nice level, as for scripts, because jobs decide how much there is to collect.
const nice = 5

// source is a kind of logs.
type source struct {
	dir    string
	prefix string // directory in the archive
	// linkRoot is a second directory to which links in dir may lead.
	linkRoot string
	// journal means that the agent's journal is added if the directory has nothing of this boot.
	journal bool
}

func (c Collector) sources(types string) ([]source, error) {
	system := filepath.Join(c.Root, "/var/log")
	known := map[string]source{
		"job": {dir: c.Dirs.JobLogs()},
		// Only root writes here, and stemcells link to the system's log of the agent.
		"agent":  {dir: c.Dirs.BoshLog(), linkRoot: system, journal: true},
		"system": {dir: system, prefix: "var/log"},
	}
	var sources []source
	var seen []string
	for name := range strings.SplitSeq(types, ",") {
		name = strings.TrimSpace(name)
		s, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("unknown log type %q: expected job, agent or system", name)
		}
		if !slices.Contains(seen, name) {
			seen = append(seen, name)
			sources = append(sources, s)
		}
	}
	return sources, nil
}

// Selection selects the logs to collect.
type Selection struct {
	Types   string // "job", "agent", "system", or several, separated by commas
	Filters []string
}

// Check returns an error for an invalid selection. It reads no logs.
func (c Collector) Check(s Selection) error {
	_, err := c.sources(s.Types)
	if err != nil {
		return err
	}
	_, err = patterns(s.Filters)
	return err
}

// Collect writes a gzip tar of the selected logs to w. It tolerates changes: a file that vanishes is skipped, one that
// grows is cut to its size when it was opened, and one that shrinks is padded with zeros. Large holes in files are
// neither read nor stored. Links are followed only within the log directories.
func (c Collector) Collect(ctx context.Context, s Selection, w io.Writer) error {
	sources, err := c.sources(s.Types)
	if err != nil {
		return err
	}
	globs, err := patterns(s.Filters)
	if err != nil {
		return err
	}
	return thread.Run(func() error {
		thread.LowerPriority(nice)
		return c.pack(ctx, sources, globs, w)
	})
}

func (c Collector) pack(ctx context.Context, sources []source, globs []string, w io.Writer) error {
	compressed := gzip.NewWriter(w)
	p := &packing{c: c, ctx: ctx, out: destination{w: compressed}, globs: globs, buffer: make([]byte, 256<<10),
		progress: newReporter(c)}
	p.tar = tar.NewWriter(&p.out)
	defer p.progress.end()
	if err := p.tar.WriteHeader(directoryHeader("./", time.Now())); err != nil {
		return fmt.Errorf("collect logs: %w", err)
	}
	for _, source := range sources {
		if err := p.source(source); err != nil {
			return fmt.Errorf("collect logs: %w", err)
		}
	}
	if err := errors.Join(p.tar.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("collect logs: %w", err)
	}
	if others := p.skipped - maxWarnings; others > 0 {
		c.Log.WithField("others", others).Warn("not added to the log archive")
	}
	p.progress.log("collected logs")
	return nil
}

type packing struct {
	c   Collector
	ctx context.Context
	// out receives the tar stream.
	out   destination
	tar   *tar.Writer
	globs []string
	// listed is the last directory that was added to the archive, after those above it. Each directory is walked once,
	// so only the last one has to be remembered.
	listed   string
	buffer   []byte
	progress *reporter
	// skipped counts the skipped files with a warning.
	skipped int
}

// destination remembers that the archive cannot be written.
type destination struct {
	w   io.Writer
	err error
}

func (d *destination) Write(b []byte) (int, error) {
	n, err := d.w.Write(b)
	if err != nil {
		d.err = err
	}
	return n, err
}

func (p *packing) source(s source) error {
	if err := p.directories(s); err != nil || !s.journal {
		return err
	}
	return p.journal(s)
}

// directories packs the directory of a source.
func (p *packing) directories(s source) error {
	root, linkRoot, err := s.open()
	if err != nil {
		return p.skip(s.dir, err)
	}
	defer closeRoots(root, linkRoot)
	return rootdir.Walk(p.ctx, root, func(dir *os.Root, rel string, entry fs.DirEntry, err error) error {
		if err != nil {
			return p.skip(rel, err)
		}
		if entry.IsDir() {
			return nil
		}
		if wanted, err := matches(p.ctx, p.globs, rel); err != nil || !wanted {
			return err
		}
		file, err := s.openFile(root, linkRoot, dir, rel, entry)
		if err != nil {
			return p.skip(rel, err)
		}
		defer file.Close()
		return p.file(file, path.Join(s.prefix, rel))
	})
}

// open opens the directory, and the second one if there is one.
func (s source) open() (root, linkRoot *os.Root, err error) {
	if root, err = os.OpenRoot(s.dir); err != nil {
		return nil, nil, err
	}
	if s.linkRoot != "" {
		linkRoot, _ = os.OpenRoot(s.linkRoot)
	}
	return root, linkRoot, nil
}

// openFile opens a regular file of the source, an entry of dir. A link may lead anywhere below root, or to the second
// directory.
func (s source) openFile(root, linkRoot, dir *os.Root, rel string, entry fs.DirEntry) (*os.File, error) {
	if entry.Type()&fs.ModeSymlink == 0 {
		return open(dir, entry.Name())
	}
	file, err := open(root, rel)
	if err != nil && linkRoot != nil {
		return openLinkTarget(root, s, rel, linkRoot)
	}
	return file, err
}

var errNoFile = errors.New("not a regular file")

// open opens a regular file below root. It does not follow links out of root. O_NONBLOCK prevents it from blocking on a
// pipe.
func open(root *os.Root, rel string) (*os.File, error) {
	file, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNoFile
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// openLinkTarget opens the target of a link in source, below the second directory of source.
func openLinkTarget(root *os.Root, s source, link string, linkRoot *os.Root) (*os.File, error) {
	target, err := root.Readlink(link)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(s.dir, filepath.Dir(link), target)
	}
	rel, err := filepath.Rel(s.linkRoot, target)
	if err != nil {
		return nil, err
	}
	return open(linkRoot, rel)
}

// skip skips a file and logs it, unless the file was removed meanwhile. Only the end of the context, or an archive that
// cannot be written, end a collection.
func (p *packing) skip(rel string, err error) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if p.out.err != nil {
		return p.out.err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile) {
		return nil
	}
	if p.skipped++; p.skipped <= maxWarnings {
		p.c.Log.WithFields(logrus.Fields{"path": rel, "error": err}).Warn("not added to the log archive")
	}
	return nil
}

// maxWarnings bounds the warnings that name a skipped file, since a job can create any number of such files.
const maxWarnings = 20

// file packs or skips a file.
func (p *packing) file(file *os.File, name string) error {
	if err := p.entry(file, name); err != nil {
		return p.skip(name, err)
	}
	p.progress.file()
	return nil
}

func (p *packing) entry(file *os.File, name string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := p.directory(path.Dir(name), info.ModTime()); err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name = "./" + name
	// Lookups of user names would read files of the machine for every log.
	header.Uname, header.Gname = "", ""
	header.ModTime = header.ModTime.Truncate(time.Second) // rounded up, it would be in the future
	data, cut, err := extents(file, header.Size)
	if err != nil {
		return err
	}
	if cut {
		p.c.Log.WithField("path", name).Warn("a log with too many holes is truncated in the archive")
		header.Size = data[len(data)-1].offset + data[len(data)-1].length
	}
	if header.Size-total(data) >= minHoles {
		return p.sparse(file, header, data)
	}
	return p.dense(file, header)
}

// dense packs a file with all its zeros.
func (p *packing) dense(file *os.File, header *tar.Header) error {
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	return p.copy(p.tar, io.NewSectionReader(file, 0, header.Size), header.Size)
}

// copy writes size bytes: the content of file, padded with zeros. An error of the reader ends the file, but not the
// archive.
func (p *packing) copy(w io.Writer, file io.Reader, size int64) error {
	for size > 0 {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		n, readErr := file.Read(p.buffer[:min(int64(len(p.buffer)), size)])
		if _, err := w.Write(p.buffer[:n]); err != nil {
			return err
		}
		size -= int64(n)
		p.progress.bytes(int64(n))
		if readErr != nil {
			break
		}
	}
	return p.pad(w, size)
}

func (p *packing) pad(w io.Writer, size int64) error {
	zeros := make([]byte, 4096)
	for size > 0 {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		n, err := w.Write(zeros[:min(int64(len(zeros)), size)])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// directory adds a directory, and those above it, to the archive, each once.
func (p *packing) directory(name string, modified time.Time) error {
	if name == "." || p.listed == name || strings.HasPrefix(p.listed, name+"/") {
		return nil
	}
	if err := p.directory(path.Dir(name), modified); err != nil {
		return err
	}
	p.listed = name
	return p.tar.WriteHeader(directoryHeader("./"+name+"/", modified))
}

func directoryHeader(name string, modified time.Time) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: modified.Truncate(time.Second)}
}
