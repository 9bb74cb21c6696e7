package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/sirupsen/logrus"
)

// ErrNotSetUp is returned if the machine has no firewall rules for the supervisor, so that no job needs an exception.
var ErrNotSetUp = errors.New("no firewall rules for monit on this machine")

// Job is a process that needs to connect to the supervisor.
type Job struct {
	Root string // directory of proc and sys, normally "/"
	UID  uint32 // of vcap, which is allowed if the job has no cgroup of its own
}

const commentPrefix = "bosh-monit-access:"

// scope matches the name of the cgroup in which bpm runs a job. Up to bpm 1.4.32 it is runc-bpm-JOB.scope. Later ones
// begin with the name of bpm's own cgroup, as in monit-service-bpm-bpm-JOB.scope; without systemd it is bpm-JOB, inside
// of bpm's own cgroup.
var scope = regexp.MustCompile(`^(?:(?:runc-bpm|.+?-bpm-bpm)-(.+)\.scope|bpm-(.+))$`)

// jobOf returns the job in a cgroup of that name, with the process if the job has several.
func jobOf(group string) (job string, found bool) {
	m := scope.FindStringSubmatch(group)
	if m == nil {
		return "", false
	}
	return m[1] + m[2], true
}

// Allow lets the calling process's job connect to the supervisor, for the program bosh-enable-monit-access. It
// identifies the job by its cgroup. If that is not possible, it allows all processes of vcap.
func (f *Firewall) Allow(ctx context.Context, j Job) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	conn, err := open()
	if err != nil {
		return err
	}
	have, err := observe(conn)
	if err != nil {
		return err
	}
	if _, there := have.chains[jobsChain]; !there {
		return ErrNotSetUp
	}
	job, level, id, err := j.group()
	if err == nil {
		err = f.allowGroup(conn, job, level, id)
	}
	if err == nil {
		return nil
	}
	f.Log.WithError(err).Warn("cannot identify the job by its cgroup; allowing all of vcap")
	return f.allowUser(conn, have, j.UID)
}

// allowGroup adds a rule for the job's cgroup and replaces that of an earlier run, whose cgroup had another inode
// number.
func (f *Firewall) allowGroup(conn *nftables.Conn, job string, level uint32, id uint64) error {
	chain := &nftables.Chain{Name: jobsChain, Table: table()}
	rules, err := conn.GetRules(table(), chain)
	if err != nil {
		return fmt.Errorf("list rules of %s: %w", jobsChain, err)
	}
	for _, r := range rules {
		if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok && comment == commentPrefix+job {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
	}
	conn.AddRule(&nftables.Rule{Table: table(), Chain: chain,
		Exprs:    join(cgroup(level, id), to(monitAddress), logged("bosh-monit-access: cgroup match: "), accept()),
		UserData: userdata.AppendString(nil, userdata.TypeComment, commentPrefix+job)})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("add rule: %w", supported(err))
	}
	f.Log.WithFields(logrus.Fields{"job": job, "cgroup": id}).Info("allowed a job to reach monit")
	return nil
}

// allowUser adds a rule for the user, unless there is one.
func (f *Firewall) allowUser(conn *nftables.Conn, have State, user uint32) error {
	r := join(uid(user), to(monitAddress), logged(fmt.Sprintf("bosh-monit-access: UID %d match: ", user)), accept())
	encoded, err := encode(r)
	if err != nil {
		return err
	}
	for _, there := range have.chains[jobsChain].rules {
		if bytes.Equal(there, encoded) {
			return nil
		}
	}
	conn.AddRule(&nftables.Rule{Table: table(), Chain: &nftables.Chain{Name: jobsChain, Table: table()}, Exprs: r})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("add rule: %w", supported(err))
	}
	f.Log.WithField("uid", user).Info("allowed a user to reach monit")
	return nil
}

// group returns the job, and the depth and id of its cgroup. The id is the inode number of its directory.
func (j Job) group() (job string, level uint32, id uint64, err error) {
	data, err := os.ReadFile(filepath.Join(j.Root, "proc/self/cgroup"))
	if err != nil {
		return "", 0, 0, err
	}
	path, found := unifiedPath(string(data))
	if !found {
		return "", 0, 0, errors.New("no cgroup v2 hierarchy")
	}
	elements := strings.Split(strings.Trim(path, "/"), "/")
	for i, e := range elements {
		job, found := jobOf(e)
		if !found {
			continue
		}
		below := filepath.Join(elements[:i+1]...)
		// With cgroup v1, v2 is mounted one level deeper.
		for _, mount := range []string{"sys/fs/cgroup/unified", "sys/fs/cgroup"} {
			info, err := os.Stat(filepath.Join(j.Root, mount, below))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return "", 0, 0, err
			}
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return "", 0, 0, errors.New("cgroup directories have no inode numbers")
			}
			return job, uint32(i + 1), st.Ino, nil
		}
		return "", 0, 0, fmt.Errorf("cgroup /%s is not mounted", below)
	}
	return "", 0, 0, errors.New("not running in a bpm cgroup")
}

// unifiedPath returns the path in the line "0::/path" of /proc/self/cgroup.
func unifiedPath(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if path, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); found &&
			strings.HasPrefix(path, "/") {
			return path, true
		}
	}
	return "", false
}
