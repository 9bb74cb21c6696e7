package action

import "context"

// ping returns its text as any because that text is then made once and not for every ping.
func ping(context.Context) (any, error) { return "pong", nil }

// apiVersion 1 tells the Director that run_errand takes a job name.
const apiVersion = 1

// Info is the answer to info.
type Info struct {
	APIVersion int `json:"api_version"`
}

func info(context.Context) (Info, error) { return Info{APIVersion: apiVersion}, nil }
