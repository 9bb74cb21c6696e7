// Package notes reports what a lab did to recover from a problem, even if a passing test hides its output. Each note is
// written to standard error and, if NotesFile is set in the environment, to that file, which `make test-vm` prints.
package notes

import (
	"fmt"
	"os"
)

// NotesFile is the environment variable with the path of the file.
const NotesFile = "CAMBIUM_LAB_NOTES"

// Add reports a note.
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
