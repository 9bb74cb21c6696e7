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

// Spec reads the file. If nothing was applied, it returns the zero spec. If the file is invalid, it returns an error
// and keeps the file; the next apply replaces it.
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

// Write replaces the file. Its mode is restrictive, because it contains signed URLs and their headers.
func (s *SpecFile) Write(spec Spec, change *bundle.Switch) error {
	spec.fill()
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the applied spec: %w", err)
	}
	return change.Write(s.Dirs.Spec(), data, 0o600)
}
