package action

import "context"

// ping returns any because the conversion of a constant to an interface allocates nothing; that of
// a string result allocates at each ping.
func ping(context.Context) (any, error) { return "pong", nil }

// apiVersion 1 tells the Director that run_errand takes a job name.
const apiVersion = 1

// Info is the answer to info.
type Info struct {
	APIVersion int `json:"api_version"`
}

func info(context.Context) (Info, error) { return Info{APIVersion: apiVersion}, nil }
