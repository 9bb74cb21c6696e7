//go:build machine && nightly

package machine

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/release"
)

// TestNightlyScriptsRunAsUpstreams compares what scripts of each kind inherit with what they had under
// cloudfoundry/bosh-agent in the same machine: namespaces, capabilities, seccomp, NoNewPrivs, umask, directory and
// environment.
func TestNightlyScriptsRunAsUpstreams(t *testing.T) {
	old, ours := labtest.Baseline(t), labtest.Agent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent, o.VM = old, oldStemcell(t) })
	i := mustDeploy(t, l, release.Manifest{Name: "dep",
		Groups: []release.Group{{Name: "app", Instances: 1, EphemeralDisk: 2048, Jobs: []release.Job{onlooker()}}}})
	theirs := seenByScripts(t, l, i)
	takeOver(t, i, ours)
	wantSameSurroundings(t, seenByScripts(t, l, i), theirs)
}

// onlooker is a job whose scripts write down what they inherited.
func onlooker() release.Job {
	return release.Job{Name: "onlooker", Files: release.Files{
		"bin/pre-start": "#!/bin/bash\n" + recordInherited("pre-start"),
		"bin/run":       "#!/bin/bash\n" + recordInherited("errand"),
		"bin/drain":     "#!/bin/bash\n" + recordInherited("drain") + "echo 0\n",
	}}
}

// seen is the directory in which scripts record what they inherited.
const seen = "/var/vcap/data/seen/"

func recordInherited(who string) string {
	return "set -eu\n" + inherited + "mkdir -p " + seen + "\n" +
		"{ inherited; echo directory $PWD; env | sort | sed 's/^/environment /'; } >" + seen + who + "\n"
}

// seenByScripts has the agent run scripts of each kind, and returns what each inherited.
func seenByScripts(t *testing.T, l *lab.Lab, i *lab.Instance) map[string][]string {
	t.Helper()
	run(t, i, "rm", "-rf", seen)
	source, err := release.Package{Name: "src",
		Files: release.Files{"packaging": recordInherited("compilation") + "touch $BOSH_INSTALL_TARGET/made\n"}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	id, digest := putBlob(t, l, source)
	for _, call := range [][]any{
		{"run_script", "pre-start", map[string]any{}},
		{"run_errand", "onlooker"},
		{"compile_package_with_signed_url", map[string]any{"package_get_signed_url": l.Blobs.SignedURL("GET", id),
			"upload_signed_url": l.Blobs.SignedURL("PUT", "compiled"), "digest": digest, "name": "src", "version": "1",
			"deps": map[string]any{}}},
		{"drain", "shutdown"},
	} {
		if _, err := i.Agent.Do(t.Context(), call[0].(string), call[1:]...); err != nil {
			t.Fatalf("%v: %v", call[0], err)
		}
	}
	all := map[string][]string{}
	for _, who := range []string{"pre-start", "errand", "compilation", "drain"} {
		all[who] = strings.Split(strings.TrimSpace(run(t, i, "cat", seen+who)), "\n")
	}
	return all
}

// perStart begins lines that differ between any two starts of a unit, or that the agents are meant to differ in: this
// one gives scripts the default nice level, and keeps systemd's socket for notifications from them.
var perStart = regexp.MustCompile(`^(nice |environment (INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|NOTIFY_SOCKET)=)`)

// wantSameSurroundings compares what scripts may do, where they begin and their environment with what they had under
// another agent.
func wantSameSurroundings(t *testing.T, ours, theirs map[string][]string) {
	t.Helper()
	for who, had := range theirs {
		got, want := slices.DeleteFunc(ours[who], perStart.MatchString), slices.DeleteFunc(had, perStart.MatchString)
		if len(want) < 40 || !slices.Equal(got, want) {
			t.Errorf("%s: got\n%s\nwant as under the other agent\n%s", who, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
