package agentjson

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// FuzzParse: no file causes a panic, and one without errors is safe to start with.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../testdata/agent.json/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, rep := Parse("agent.json", data)
		if rep.Failed() {
			return
		}
		if len(c.Infrastructure.Settings.Sources) == 0 {
			t.Fatal("no sources and no error")
		}
		for _, s := range c.Infrastructure.Settings.Sources {
			if !slices.Contains(Types(), s.Type) {
				t.Fatalf("type %q and no error", s.Type)
			}
		}
		if _, err := regexp.Compile(c.Platform.Linux.DiskIDTransformPattern); err != nil {
			t.Fatal(err)
		}
	})
}
