package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"cambium/cmd/agent/doctor"
	"cambium/cmd/agent/doctor/observe"
	"cambium/cmd/agent/show"
	"cambium/cmd/agent/timeline"
	"cambium/internal/golden"
	"cambium/internal/status"
)

// promise states the guarantees that a reader of the documents may rely on.
const promise = "Made from the agent's types. What is listed here stays, with its name and type; " +
	"what is not required may be absent, and more may come: ignore what you do not know."

// schemaOf is the JSON schema of what encoding/json makes of a type.
func schemaOf(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[observe.Facts]():
		return map[string]any{"type": "object", "description": "What was looked at. Nothing in it is promised."}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		return objectOf(t)
	}
	return map[string]any{} // any value
}

func objectOf(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		of := schemaOf(field.Type)
		nullable := field.Type.Kind() == reflect.Slice || field.Type.Kind() == reflect.Map ||
			field.Type.Kind() == reflect.Pointer
		if options == "" {
			required = append(required, cmp.Or(name, field.Name))
			if nullable {
				of["type"] = []any{of["type"], "null"}
			}
		}
		properties[cmp.Or(name, field.Name)] = of
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// TestSchemasOfDocuments: what --json prints has a schema; -update writes it. A line that goes from a schema breaks the
// promise that is in it.
func TestSchemasOfDocuments(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := filepath.Join(dir, "run", "status.json")
	r, err := status.Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Flush() }()
	now := time.Now()
	if err := r.Update(func(d *status.Document) {
		d.State, d.Verdict, d.Try, d.NextTry, d.Warnings = status.Failed, "disk: none: attach it", 2, &now,
			[]string{"w"}
		d.Bus = &status.Bus{State: status.BusConnecting, Server: "h:1", Since: now, Tries: 3, Reason: "refused"}
		d.Settings = &status.Settings{From: "CDROM", Cached: true, Why: "none"}
		d.Steps = []status.Step{{Name: "settings", Outcome: status.Done, Start: 1, End: 5,
			Waits:    []status.Wait{{For: "x", Start: 2, End: 3}},
			Evidence: []string{"e"}, Changes: []string{"c"}, Parts: []status.Part{{Name: "CDROM", Outcome: "done",
				Start: 1, End: 2}}},
			{Name: "disk", Outcome: status.Broken, Start: 5, End: 9, Error: "none", Advice: "attach it"}}
		d.Progress = map[string]status.Progress{"migrate_disk": {Text: "copy", Done: 1, Total: 2, Updated: now}}
		d.Marks, d.Tries = []status.Mark{{Name: status.MarkBus, At: 4}}, []status.Try{{Verdict: "v", Steps: d.Steps}}
		d.Reboot = &status.Reboot{Cause: "requested", Back: "disks: none"}
		d.Earlier = []status.Run{{PID: 3, Started: now, State: status.Failed, Steps: d.Steps}}
	}); err != nil {
		t.Fatal(err)
	}
	source := put("env.json", `{"agent_id":"a-1","disks":{"ephemeral":"/dev/nowhere"}}`)
	config := put("agent.json",
		`{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"`+source+`"}]}}}`)
	for name, c := range map[string]struct {
		of   reflect.Type
		run  func(context.Context, []string, io.Writer, io.Writer) int
		args []string
	}{
		"status": {reflect.TypeFor[status.Document](), show.Status, []string{"--file", path}},
		"doctor": {reflect.TypeFor[doctor.Report](), doctor.Command(drift), []string{"-b", dir, "--file", path, "--timeout",
			"1s"}},
		"plan": {reflect.TypeFor[bootPlan](), runPlan, []string{"-b", filepath.Join(dir, "base"), "-C", config,
			"--timeout", "20s"}},
		"timeline": {reflect.TypeFor[timeline.Chart](), timeline.Run, []string{"-b", dir, "--file", path}},
	} {
		t.Run(name, func(t *testing.T) {
			schema := schemaOf(c.of)
			schema["$schema"], schema["title"],
				schema["description"] = "https://json-schema.org/draft/2020-12/schema", "agent "+name+" --json", promise
			text, err := json.MarshalIndent(schema, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "../../../docs/schema/"+name+".schema.json", string(text)+"\n")
			var out, complaints bytes.Buffer
			c.run(t.Context(), append(c.args, "--json"), &out, &complaints)
			document, err := jsonschema.UnmarshalJSON(&out)
			if err != nil {
				t.Fatalf("%v: %s", err, complaints.String())
			}
			compiled, err := jsonschema.NewCompiler().Compile("../../docs/schema/" + name + ".schema.json")
			if err != nil {
				t.Fatal(err)
			}
			if err := compiled.Validate(document); err != nil {
				t.Error(err)
			}
		})
	}
}
