// Package speclog has the log messages that the Director's integration suite searches for. Its specs run a Director
// with agents that have no machine (-P dummy -M dummy-nats) and read their logs, so these messages are an interface. A
// test lists which spec reads which message.
package speclog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Action returns the message that a request is served. async is set if the answer is a task.
func Action(method string, async bool) string {
	if async {
		return "Running async action " + method
	}
	return "Running sync action " + method
}

// quoted lists the requests whose arguments a spec reads. None of them contains a secret.
var quoted = map[string]bool{"delete_arp_entries": true, "shutdown": true, "sync_dns": true}

// Request returns the message that quotes a request. read is false if no spec reads its arguments.
func Request(method string, arguments []json.RawMessage) (line string, read bool) {
	if !quoted[method] {
		return "", false
	}
	parts := make([][]byte, len(arguments))
	for i, a := range arguments {
		parts[i] = a
	}
	return `Request {"method":` + strconv.Quote(
		method,
	) + `,"arguments":[` + string(
		bytes.Join(parts, []byte(",")),
	) + "]}", true
}

// Script returns the message about the end of a job's script.
func Script(path string, fault error) string {
	if fault != nil {
		return fmt.Sprintf("'%s' script has failed with error: %s", path, fault)
	}
	return fmt.Sprintf("'%s' script has successfully executed", path)
}
