package observe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/vcap"
	"cambium/settings/agentjson"
)

// A source that the agent has erased after it had cached the settings does not fail; and one that it has not erased is
// left alone by who only asks.
func TestSpentSourcesDoNotFail(t *testing.T) {
	for _, c := range []struct{ name, script, from, sourcesErr string }{
		{"erased", "echo ---", "cached ", ""},
		{"empty", "echo", "cached ", "no source has settings: "},
		{"not erased yet", `[ "${1#info-get}" != "$1" ] || touch "$0.called"; echo '{"agent_id":"a-1"}'`,
			"VsphereGuestInfo ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dirs, tool := vcap.New(t.TempDir()), filepath.Join(t.TempDir(), "rpctool")
			for path, content := range map[string]string{tool: "#!/bin/sh\n" + c.script + "\n",
				vcap.Place(dirs.Bosh()).Settings(): `{"agent_id":"a-1"}`} {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var config agentjson.Config
			config.Infrastructure.Settings.Sources = []agentjson.Source{{Type: agentjson.VsphereGuestInfo, RpcToolPath: tool,
				VmToolsdPath: "/nowhere"}}
			var found Settings
			loadSettings(t.Context(), Options{Dirs: dirs, Timeout: time.Minute}, config, true, &found)
			if found.AgentID != "a-1" || !strings.HasPrefix(found.From, c.from) || found.Err != "" ||
				!strings.HasPrefix(found.SourcesErr, c.sourcesErr) || c.sourcesErr == "" && found.SourcesErr != "" {
				t.Errorf("got %+v", found)
			}
			if _, err := os.Stat(tool + ".called"); err == nil {
				t.Error("the source was erased")
			}
		})
	}
}
