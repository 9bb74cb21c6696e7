package action

import "context"

// ping returns any, because converting a constant to an interface allocates nothing, while converting a string result
// would allocate for each ping.
func ping(context.Context) (any, error) { return "pong", nil }

// apiVersion 1 tells the Director that run_errand takes the name of a job.
const apiVersion = 1

// Info is the result of info.
type Info struct {
	APIVersion int `json:"api_version"`
}

func info(context.Context) (Info, error) { return Info{APIVersion: apiVersion}, nil }
