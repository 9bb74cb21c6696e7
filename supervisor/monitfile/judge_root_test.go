//go:build root

package monitfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cambium/internal/skiptest"
)

// stricter are the mistakes that monit 5.33 accepts, with the reason why they are mistakes nevertheless.
var stricter = map[string]string{
	"set daemon 10":                  "the file of a job must not change the daemon",
	process + "INCLUDE /etc/x":       "the file of a job must not change the daemon",
	process + "alert root@localhost": "alerts go to the agent",

	process + "start program '/x'":                      "5.2.5 wants double quotes",
	process + "start program /x":                        "5.2.5 wants double quotes",
	process + "if failed port 80 then exec /x":          "5.2.5 wants double quotes",
	process + `start program "/x 'a "b" c'"`:            "5.2.5 ends the program at the next double quote",
	process + "every \"0-5 * * * *\"":                   "5.2.5 counts cycles only",
	process + "if loadavg > 5 then alert":               "5.2.5 wants the minutes",
	process + "if failed host ::1 port 80 then alert":   "5.2.5 has no colon in a word",
	process + "if failed port 80 then alert else alert": "5.2.5 wants else if recovered",

	process + "if failed url http://x then alert":          "no release has it",
	process + "if failed port 25 protocol smtp then alert": "no release has it",

	process + "start program \"/x\n y":                         "half a program",
	process + "start program \"/x a\x00b\"":                    "no program can be called so",
	"check process \"a\\nb\" pidfile /a":                       "the name would be two lines of a status",
	"check process a with pidfile \"/a\\0x00\"":                "no file can have the name",
	process + "if failed port 0 then alert":                    "always fails",
	process + "if failed port 99999999999999999999 then alert": "always fails",
	process + "if failed port 80 timeout 0 seconds then alert": "always fails",
}

// TestRootMonitAgrees gives all files of the tables to the real monit: it accepts what Parse accepts, and refuses what
// Parse refuses.
func TestRootMonitAgrees(t *testing.T) {
	if _, err := exec.LookPath("monit"); err != nil {
		skiptest.Skip(t, "monit is not installed")
	}
	for _, shape := range shapes {
		if out, err := monitTest(t, shape.text); err != nil {
			t.Errorf("%s\nmonit refuses it: %v, %s", shape.text, err, out)
		}
	}
	used := map[string]bool{}
	for _, m := range mistakes {
		_, err := monitTest(t, m.text)
		_, known := stricter[m.text]
		used[m.text] = known
		if accepts := err == nil; accepts != known {
			t.Errorf("%s\nmonit accepts it: %v, and the list of differences says %v", m.text, accepts, known)
		}
	}
	for text := range stricter {
		if !used[text] {
			t.Errorf("%s\nis not among the mistakes", text)
		}
	}
}

// monitTest runs monit -t. All files of monit are in a directory of the test.
func monitTest(t *testing.T, text string) (output []byte, err error) {
	dir := t.TempDir()
	file := filepath.Join(dir, "monitrc")
	own := "set daemon 10 set idfile " + dir + "/id set statefile " + dir + "/state set pidfile " + dir + "/pid\n"
	if err := os.WriteFile(file, []byte(own+text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "monit", "-t", "-c", file)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	return cmd.CombinedOutput()
}
