//go:build vm || nightly

package stemcell

import (
	"os"
	"testing"

	"cambium/integration/lab/image"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/tree"
)

// tarball makes the stemcell that the tests of virtual machines boot; it is cached.
func tarball(t *testing.T, iaas string) string {
	t.Helper()
	if err := image.Missing(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cache := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}
	file, err := cache.EnsureStemcell(t.Context(), labtest.Agent(t), image.Stemcell{Version: "0.0.1", IaaS: iaas})
	if err != nil {
		t.Fatal(err)
	}
	return file
}
