package machine

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/oneline"
)

// VerdictPort is a device in every machine, the port VerdictPortName. What is written to it, one line for each verdict
// of the agent, is stored in the machine's directory.
const VerdictPort = "/dev/virtio-ports/" + VerdictPortName

// VerdictPortName is the name of the virtio serial port.
const VerdictPortName = "cambium.verdict"

// maxVerdict bounds the length of a line.
const maxVerdict = 1024

// VerdictFile returns the path of the file with the output of the port, for a machine with the directory dir.
func VerdictFile(dir string) string { return filepath.Join(dir, "verdict.log") }

// LastVerdict returns the last complete line of a machine's port, or "". Do not trust it, since the machine may write
// anything.
func LastVerdict(dir string) (string, error) {
	f, err := os.Open(VerdictFile(dir))
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	end := make([]byte, min(info.Size(), 2*maxVerdict))
	if _, err := f.ReadAt(end, info.Size()-int64(len(end))); err != nil && err != io.EOF {
		return "", err
	}
	return lastLine(string(end)), nil
}

func lastLine(text string) string {
	complete := strings.TrimRight(text[:strings.LastIndexByte(text, '\n')+1], "\r\n")
	line := complete[strings.LastIndexByte(complete, '\n')+1:]
	line = oneline.Of(strings.ToValidUTF8(line[:min(len(line), maxVerdict)], ""))
	return strings.TrimSpace(line)
}
