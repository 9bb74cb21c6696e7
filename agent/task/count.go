package task

// Counts is how many tasks of a journal are in which state.
type Counts struct {
	Running   int `json:"running"` // or interrupted, if the agent does not run
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
}

// Count reads the journal at path, of an agent that may be running: a line that is being written does not count.
func Count(path string) (c Counts, err error) {
	all, _, err := readJournal(path)
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
