// Package cpi implements the CPI contract for the lab's IaaS: one JSON request, one JSON reply. A Director or
// create-env runs a program, which forwards the request over HTTP on a local socket to the holder, the process that
// holds the IaaS. The holder outlives the program.
package cpi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"cambium/lab/iaas"
	"cambium/lab/iaas/value"
)

// Request is a call of a method.
type Request struct {
	Method    string            `json:"method"`
	Arguments []json.RawMessage `json:"arguments"`
	// APIVersion is 1 if it is missing, because older callers send none.
	APIVersion int     `json:"api_version"`
	Context    Context `json:"context"`
}

// Context identifies the caller of a method.
type Context struct {
	DirectorUUID value.Name `json:"director_uuid"`
	RequestID    value.Name `json:"request_id"`
	VM           struct {
		Stemcell struct {
			APIVersion int `json:"api_version"`
		} `json:"stemcell"`
	} `json:"vm"`
	// Lab and Agent are the properties of this CPI in the Director's cpi-config, if any. They replace those of the job.
	// They may hold secrets, and are not sent to the holder.
	Lab   json.RawMessage `json:"lab,omitempty"`
	Agent json.RawMessage `json:"agent,omitempty"`
}

// ReadRequest decodes and checks a request.
func ReadRequest(data []byte) (Request, error) {
	var r Request
	decode := json.NewDecoder(bytes.NewReader(data))
	if err := decode.Decode(&r); err != nil {
		return r, fmt.Errorf("the request does not have the form of the CPI contract: %w", err)
	}
	if _, err := decode.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("there is more than one request on standard input")
	}
	if r.Method == "" {
		return r, errors.New("the request names no method")
	}
	if r.APIVersion == 0 {
		r.APIVersion = 1
	}
	return r, nil
}

// Reply is the reply to a request. All keys are present, because the Director requires them.
type Reply struct {
	Result any    `json:"result"`
	Error  *Error `json:"error"`
	Log    string `json:"log"`
}

// Error describes why a request failed.
type Error struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	OKToRetry bool   `json:"ok_to_retry"`
}

// typePrefix is the prefix of error types.
const typePrefix = "Bosh::Clouds::"

// maxMessage bounds error messages, so that the Director's task stays readable.
const maxMessage = 2000

// Failure returns the reply for an error.
func Failure(err error) Reply {
	kind := iaas.KindOf(err)
	message := strings.ToValidUTF8(err.Error(), "?")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return Reply{Error: &Error{Type: typePrefix + string(kind), Message: message,
		OKToRetry: kind == iaas.VMCreationFailed}}
}

// Version is the latest supported version of the contract.
const Version = 3

// formats lists the formats of stemcells whose agents find their settings here: on a config drive, on a CD or at the
// metadata service.
var formats = []string{"openstack-raw", "openstack-qcow2", "aws-raw", "google-rawdisk", "vsphere-ovf", "qemu-raw",
	"cambium-light"}

// info returns the reply to info.
func info() Reply {
	return Reply{Result: map[string]any{"stemcell_formats": formats, "api_version": Version}}
}
