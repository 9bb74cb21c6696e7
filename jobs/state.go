package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cambium/internal/vcap"
	"cambium/jobs/bundle"
)

// SpecFile is spec.json, the spec that was applied last.
type SpecFile struct{ Dirs vcap.Dirs }

// Spec reads the file. A machine to which nothing was applied has the zero spec. A file that
// does not decode is an error that says so and is left as it is: the next apply replaces it.
func (s *SpecFile) Spec() (Spec, error) {
	var spec Spec
	data, err := os.ReadFile(s.Dirs.Spec())
	if errors.Is(err, fs.ErrNotExist) {
		spec.fill()
		return spec, nil
	}
	if err != nil {
		return Spec{}, fmt.Errorf("read the applied spec: %w", err)
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return Spec{}, fmt.Errorf("%s is corrupt: %w", s.Dirs.Spec(), err)
	}
	return spec, nil
}

// Write replaces the file. It holds signed URLs and their headers, hence its mode.
func (s *SpecFile) Write(spec Spec, change *bundle.Switch) error {
	spec.fill()
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the applied spec: %w", err)
	}
	return change.Write(s.Dirs.Spec(), data, 0o600)
}
