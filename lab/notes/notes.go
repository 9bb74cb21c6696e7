// Package notes reports what a lab did on its own to recover from a problem, even where a test that passes hides its
// output: each note goes to standard error and, where NotesFile is set in the environment, to that file, which `make
// test-vm` prints.
package notes

import (
	"fmt"
	"os"
)

// NotesFile is the variable that names the file.
const NotesFile = "CAMBIUM_LAB_NOTES"

// Add adds a note.
func Add(format string, args ...any) {
	line := fmt.Sprintf("lab: "+format+"\n", args...)
	fmt.Fprint(os.Stderr, line)
	path := os.Getenv(NotesFile)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab: cannot record a note:", err)
		return
	}
	_, _ = f.WriteString(line)
	_ = f.Close()
}
