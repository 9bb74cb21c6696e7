package task

// Counts has the number of tasks in each state.
type Counts struct {
	Running   int `json:"running"` // or interrupted, if the agent is not running
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
}

// Count counts the tasks in the document at path. The agent may be running.
func Count(path string) (c Counts, err error) {
	all, err := read(path)
	for _, e := range all {
		switch {
		case e.Ended.IsZero():
			c.Running++
		case e.Failed:
			c.Failed++
		default:
			c.Succeeded++
		}
	}
	return c, err
}
