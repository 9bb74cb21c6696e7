//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/lab"
	"cambium/platform"
	"cambium/platform/platformtest"
	"cambium/platform/user"
)

// TestMachineAccounts judges accounts by who gets in: real sshd, real sudo, and the shadow tools
// at work on the same files at the same time.
func TestMachineAccounts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	services := systemdOf(t, i)
	accounts := &user.Accounts{Root: services.Root, Log: platformtest.Quiet()}
	sessions := user.Sessions{Accounts: accounts, HomeBase: "/var/vcap/bosh_ssh"}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	run(t, i, "ssh-keygen", "-A")
	run(t, i, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/key")
	if err := services.Start(ctx, "ssh"); err != nil {
		t.Fatal(err)
	}
	key := run(t, i, "cat", "/root/key.pub")
	login := func(name string, args ...string) (string, error) {
		return i.Output(ctx, append([]string{"ssh", "-i", "/root/key", "-o", "StrictHostKeyChecking=no", "-o",
			"BatchMode=yes", name + "@127.0.0.1"}, args...)...)
	}

	if err := sessions.Create(ctx, "bosh_one", key); err != nil {
		t.Fatal(err)
	}
	if got, err := login("bosh_one", "sudo", "-n", "id", "-u"); err != nil || strings.TrimSpace(got) != "0" {
		t.Errorf("sudo over ssh: got %q, %v, want 0", got, err)
	}
	if got := strings.Fields(run(t, i, "id", "-Gn", "bosh_one")); len(got) != 5 || got[0] != "bosh_one" {
		t.Errorf("got groups %q, want its own and four", got)
	}
	passwords := user.Desired{Passwords: map[string]secret.String{"vcap": secret.New("$6$salt$hash")}}
	if _, err := platform.Converge(ctx, accounts, user.Diff, passwords); err != nil {
		t.Error(err)
	}
	if got := run(t, i, "getent", "shadow", "vcap"); !strings.HasPrefix(got, "vcap:$6$salt$hash:") {
		t.Errorf("got %q, want the hash in it", got)
	}

	// A user is logged in while the account is removed; the session lives, new logins fail.
	held := make(chan error)
	go func() {
		_, err := login("bosh_one", "touch", "in", ";", "exec", "sleep", "1001")
		held <- err
	}()
	eventually.Nil(t, "the session", func() error {
		_, err := i.Output(ctx, "test", "-e", "/var/vcap/bosh_ssh/bosh_one/in")
		return err
	})
	one, err := accounts.Lookup("bosh_one")
	if err != nil {
		t.Fatal(err)
	}
	if err := sessions.Remove(ctx, func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Output(ctx, "getent", "passwd", "bosh_one"); err == nil {
		t.Error("the account is still there")
	}
	if _, err := i.Output(ctx, "test", "-e", "/var/vcap/bosh_ssh/bosh_one"); err == nil {
		t.Error("the home is still there")
	}
	if got := strings.TrimSpace(run(t, i, "pgrep", "-u", fmt.Sprint(one.UID), "sleep")); got == "" {
		t.Error("the session was ended")
	}
	if err := sessions.Create(ctx, "bosh_two", key); err != nil {
		t.Fatal(err)
	}
	if two, err := accounts.Lookup("bosh_two"); err != nil || two.UID == one.UID {
		t.Errorf("got %+v, %v: the number of a running session was given away", two, err)
	}
	run(t, i, "pkill", "-f", "sleep 1001")
	<-held

	// The shadow tools and the agent edit at the same time; no edit is lost.
	const each = 12
	var failed []error
	var mu sync.Mutex
	var group sync.WaitGroup
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, err)
	}
	for n := range each {
		group.Go(func() { note(sessions.Create(ctx, fmt.Sprintf("bosh_agent%d", n), key)) })
		group.Go(func() {
			_, err := i.Output(ctx, "useradd", "-m", fmt.Sprintf("tool%d", n))
			note(err)
		})
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
	passwd := run(t, i, "getent", "passwd")
	if got := strings.Count(passwd, "\nbosh_agent") + strings.Count(passwd, "\ntool"); got != 2*each {
		t.Errorf("got %d of %d accounts:\n%s", got, 2*each, passwd)
	}
	uids := make(map[string]bool)
	for line := range strings.Lines(passwd) {
		uid := strings.Split(line, ":")[2]
		if uids[uid] {
			t.Errorf("two accounts have number %s", uid)
		}
		uids[uid] = true
	}
	for _, c := range []string{"pwck -q -r", "grpck -r"} {
		if out, err := i.Output(ctx, "sh", "-c", c); err != nil {
			t.Errorf("%s: %v: %s", c, err, out)
		}
	}
	if err := sessions.Remove(ctx, func(string) bool { return true }); err != nil {
		t.Error(err)
	}
	if got := run(t, i, "getent", "passwd"); strings.Contains(got, "bosh_") {
		t.Errorf("left over: %s", got)
	}
}
