// Package cpi implements the CPI contract on top of the lab's IaaS: one JSON request, one JSON reply. The program
// that a Director or create-env runs forwards the request to the holder, the process that has the IaaS, over HTTP on
// a local socket; the holder outlives it.
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

// Request is one call of the contract.
type Request struct {
	Method    string            `json:"method"`
	Arguments []json.RawMessage `json:"arguments"`
	// APIVersion is 1 if it is missing: older callers send none.
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
	// Lab and Agent are the properties of this CPI in the Director's cpi-config, if there is one: they
	// take the place of the job's. They may hold secrets, and do not go to the holder.
	Lab   json.RawMessage `json:"lab,omitempty"`
	Agent json.RawMessage `json:"agent,omitempty"`
}

// ReadRequest decodes a request strictly enough to say what is wrong with it.
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

// Reply is the answer. All keys are always there: the Director demands them.
type Reply struct {
	Result any    `json:"result"`
	Error  *Error `json:"error"`
	Log    string `json:"log"`
}

// Error is the reason why there is no result.
type Error struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	OKToRetry bool   `json:"ok_to_retry"`
}

// typePrefix begins the types that callers know.
const typePrefix = "Bosh::Clouds::"

// maxMessage keeps error messages readable in the Director's task.
const maxMessage = 2000

// Failure is the reply for an error.
func Failure(err error) Reply {
	kind := iaas.KindOf(err)
	message := strings.ToValidUTF8(err.Error(), "?")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return Reply{Error: &Error{Type: typePrefix + string(kind), Message: message, OKToRetry: kind == iaas.VMCreationFailed}}
}

// Version is the newest version of the contract that is supported.
const Version = 3

// formats are those of stemcells whose agents find their settings here: on a config drive, on a CD or at the address of
// the metadata service.
var formats = []string{"openstack-raw", "openstack-qcow2", "aws-raw", "google-rawdisk", "vsphere-ovf", "qemu-raw",
	"cambium-light"}

// info answers info, for which nothing else is needed.
func info() Reply {
	return Reply{Result: map[string]any{"stemcell_formats": formats, "api_version": Version}}
}
