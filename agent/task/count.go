package task

// Counts is the number of tasks of a document in each state.
type Counts struct {
	Running   int `json:"running"` // or interrupted, if the agent does not run
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
}

// Count reads the document at path, of an agent that may be running.
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
