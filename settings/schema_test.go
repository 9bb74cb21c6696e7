package settings_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"cambium/internal/report"
	"cambium/internal/secret"
	"cambium/settings"
	"cambium/settings/agentjson"
)

const schemas = "../docs/schema/"

// kinds are the three documents: their schema, the decoder that runs at boot, the examples, and
// a smallest document that is good.
//
// The examples named docs-* come from the BOSH documentation. As printed there some of them are
// no JSON: two have a trailing comma after "env" or the last disk, two lack the comma after
// "mbus", one lacks one between two networks, and "..." stands for objects. The copies here have
// these slips mended and fragments completed to documents; nothing else was changed.
var kinds = map[string]struct {
	schema   string
	examples string
	minimal  []string
	decode   func(name string, data []byte) report.Report
}{
	"agent.json": {
		schema: "agent-json.schema.json", examples: "testdata/agent.json",
		minimal: []string{
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"VsphereGuestInfo"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"HTTP","URI":"http://h"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"InstanceMetadata","URI":"http://h","SettingsPath":"/s"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"ConfigDrive","DiskPaths":["/d"],"UserDataPath":"u"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"ConfigDrive","DiskPaths":["/d"],"SettingsPath":"s"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"s"}]}}}`,
			`{"Infrastructure":{"Settings":{"Sources":[{"Type":"CDROM","FileName":"env"}]}}}`,
		},
		decode: func(name string, data []byte) report.Report { _, rep := agentjson.Parse(name, data); return rep },
	},
	"settings": {
		schema: "settings.schema.json", examples: "testdata/settings",
		minimal: []string{`{"agent_id":"a"}`, `{"registry":{"endpoint":"http://r"}}`},
		decode: func(name string, data []byte) report.Report {
			return settings.Validate(name, secret.NewJSON(data))
		},
	},
	"update-settings": {
		schema: "update-settings.schema.json", examples: "testdata/update",
		minimal: []string{`{}`},
		decode: func(name string, data []byte) report.Report {
			_, rep := settings.DecodeUpdate(name, secret.NewJSON(data))
			return rep
		},
	},
}

func compile(t *testing.T, file string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(schemas + file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func examples(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples in %s: %v", dir, err)
	}
	return files
}

// TestEverySourceIsInTheSchema: each type of source has a minimal document, which the schema accepts.
func TestEverySourceIsInTheSchema(t *testing.T) {
	schema := compile(t, kinds["agent.json"].schema)
	for _, name := range agentjson.Types() {
		i := slices.IndexFunc(kinds["agent.json"].minimal,
			func(text string) bool { return strings.Contains(text, `"Type":"`+name+`"`) })
		if i < 0 {
			t.Errorf("no minimal document has a source of type %s", name)
			continue
		}
		instance, err := jsonschema.UnmarshalJSON(strings.NewReader(kinds["agent.json"].minimal[i]))
		if err == nil {
			err = schema.Validate(instance)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExamplesAreAcceptedBySchemaAndDecoder(t *testing.T) {
	for kind, k := range kinds {
		schema := compile(t, k.schema)
		for _, file := range examples(t, k.examples) {
			t.Run(kind+"/"+filepath.Base(file), func(t *testing.T) {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				if err := schema.Validate(instance); err != nil {
					t.Errorf("schema: %v", err)
				}
				rep := k.decode(file, data)
				for _, e := range rep.Entries {
					// A pointer to a registry is not a settings document and says so.
					if !strings.Contains(e.Message, "pointer to a registry") {
						t.Error(e)
					}
				}
			})
		}
	}
}

// TestSchemaAndDecoderAgree puts values of every JSON type in every place of the schema. Schema and decoder must agree
// whether to accept them.
func TestSchemaAndDecoderAgree(t *testing.T) {
	values := []any{nil, true, json.Number("0"), json.Number("-1"), json.Number("1.5"), json.Number("2048.0"), "", "x",
		"2048", "a/b", []any{}, []any{"x"}, []any{json.Number("1")}, map[string]any{}}
	for kind, k := range kinds {
		t.Run(kind, func(t *testing.T) {
			schema := compile(t, k.schema)
			places := placesOf(t, k.schema)
			if len(places) < 10 {
				t.Fatalf("the schema has only %d places", len(places))
			}
			for _, minimal := range k.minimal {
				for _, place := range places {
					for _, value := range values {
						instance, err := jsonschema.UnmarshalJSON(strings.NewReader(minimal))
						if err != nil {
							t.Fatal(err)
						}
						instance = put(instance, place, value)
						data, err := json.Marshal(instance)
						if err != nil {
							t.Fatal(err)
						}
						good := schema.Validate(instance) == nil
						if rep := k.decode("doc", data); rep.Failed() == good {
							t.Errorf("%s: schema accepts: %v; decoder: %v", data, good, rep)
						}
					}
				}
			}
		})
	}
}

// placesOf lists the paths of a schema, following references; "*" stands for any key and "0"
// for the first item of a list.
func placesOf(t *testing.T, file string) (all [][]string) {
	t.Helper()
	data, err := os.ReadFile(schemas + file)
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	var walk func(node map[string]any, at []string)
	walk = func(node map[string]any, at []string) {
		if ref, ok := node["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/$defs/")
			walk(root["$defs"].(map[string]any)[name].(map[string]any), at)
		}
		properties, _ := node["properties"].(map[string]any)
		for key, sub := range properties {
			path := append(slices.Clone(at), key)
			all = append(all, path)
			walk(sub.(map[string]any), path)
		}
		for keyword, step := range map[string]string{"items": "0", "additionalProperties": "*"} {
			if sub, ok := node[keyword].(map[string]any); ok {
				path := append(slices.Clone(at), step)
				all = append(all, path)
				walk(sub, path)
			}
		}
		alternatives, _ := node["anyOf"].([]any)
		for _, sub := range alternatives {
			walk(sub.(map[string]any), at)
		}
	}
	walk(root, nil)
	slices.SortFunc(all, func(a, b []string) int { return strings.Compare(strings.Join(a, "."), strings.Join(b, ".")) })
	return slices.CompactFunc(all, slices.Equal[[]string])
}

func put(node any, place []string, value any) any {
	if len(place) == 0 {
		return value
	}
	if place[0] == "0" {
		list, _ := node.([]any)
		var first any
		if len(list) > 0 {
			first = list[0]
		}
		return []any{put(first, place[1:], value)}
	}
	object, ok := node.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	key := strings.Replace(place[0], "*", "k", 1)
	object[key] = put(object[key], place[1:], value)
	return object
}

// TestSchemasKnowEveryOption compares the schemas with the Go types (agent.json) and with their encoding (settings,
// updates). The page is generated from the schemas.
func TestSchemasKnowEveryOption(t *testing.T) {
	var want = map[string][]string{}
	for _, typ := range []reflect.Type{reflect.TypeFor[agentjson.Config](), reflect.TypeFor[agentjson.Platform](),
		reflect.TypeFor[agentjson.Linux](),
		reflect.TypeFor[agentjson.Windows](), reflect.TypeFor[agentjson.Infrastructure](),
		reflect.TypeFor[agentjson.Settings](), reflect.TypeFor[agentjson.Source]()} {
		for i := range typ.NumField() {
			want["agent.json"] = append(want["agent.json"], typ.Field(i).Name)
		}
	}
	full, rep := settings.Decode("full", secret.NewJSON([]byte(`{"agent_id":"a","disks":{"persistent":{"*":{"path":"p","volume_id":"v","id":"i","lun":"l","host_device_id":"h",
		"iscsi_settings":{"initiator_name":"i","username":"u","target":"t","password":"p"}}}},
		"networks":{"*":{"alias":"a","routes":[]}},"env":{"persistent_disk_foreign":"refuse","persistent_disk_blank":"zeros","bosh":{"ntp":[],"blobstores":[{}]}}}`)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	want["settings"] = keysOf(t, full.Redacted())
	want["settings"] = append(want["settings"], "routes", "destination", "device_id")
	update, _ := settings.DecodeUpdate("full",
		secret.NewJSON([]byte(`{"disk_associations":[{"name":"n","cid":"c"}],"blobstores":[{}]}`)))
	redacted, err := json.Marshal(update)
	if err != nil {
		t.Fatal(err)
	}
	want["update-settings"] = keysOf(t, redacted)

	for kind, keys := range want {
		var known []string
		for _, place := range placesOf(t, kinds[kind].schema) {
			known = append(known, place[len(place)-1])
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			if key != "*" && !slices.Contains(known, key) {
				t.Errorf("%s: the schema lacks %q", kind, key)
			}
		}
	}
}

func keysOf(t *testing.T, document []byte) (keys []string) {
	t.Helper()
	var tree any
	if err := json.Unmarshal(document, &tree); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(node any) {
		switch n := node.(type) {
		case map[string]any:
			for key, sub := range n {
				keys = append(keys, key)
				walk(sub)
			}
		case []any:
			for _, sub := range n {
				walk(sub)
			}
		}
	}
	walk(tree)
	return keys
}
