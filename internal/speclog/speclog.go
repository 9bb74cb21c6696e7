// Package speclog holds the sentences of the log that the Director's own integration suite searches for.
// Its specs run a Director against agents without machines (-P dummy -M dummy-nats) and read the agents'
// logs, so these sentences are an interface. A test lists which spec reads which.
package speclog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Action says that a request is served; async reports that its answer is a task.
func Action(method string, async bool) string {
	if async {
		return "Running async action " + method
	}
	return "Running sync action " + method
}

// quoted are the requests whose arguments a spec reads. None of them carries a secret.
var quoted = map[string]bool{"delete_arp_entries": true, "shutdown": true, "sync_dns": true}

// Request is a request as it came, where a spec reads its arguments.
func Request(method string, arguments []json.RawMessage) (line string, read bool) {
	if !quoted[method] {
		return "", false
	}
	parts := make([][]byte, len(arguments))
	for i, a := range arguments {
		parts[i] = a
	}
	return `Request {"method":` + strconv.Quote(method) + `,"arguments":[` + string(bytes.Join(parts, []byte(","))) + "]}", true
}

// Script says how the script of a job ended.
func Script(path string, fault error) string {
	if fault != nil {
		return fmt.Sprintf("'%s' script has failed with error: %s", path, fault)
	}
	return fmt.Sprintf("'%s' script has successfully executed", path)
}
