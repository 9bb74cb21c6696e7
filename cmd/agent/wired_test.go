package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/platform/unit"
)

// TestEveryPartIsWired: an action whose part is nil would panic when a Director calls it, and so would the rest.
func TestEveryPartIsWired(t *testing.T) {
	base := t.TempDir()
	config := filepath.Join(base, "agent.json")
	if err := os.MkdirAll(filepath.Join(base, "bosh"), 0o700); err != nil {
		t.Fatal(err)
	}
	document := `{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"/none"}]}}}`
	if err := os.WriteFile(config, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	o := runOptions{platform: "dummy", supervisor: "dummy", base: base, config: config}
	b, err := newBooting(t.Context(), o, logrus.NewEntry(logger), unit.Notifier{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A booting agent has no alertPort where none is received, and no reboot before it has looked for one.
	for _, missing := range unset(b, "alertPort", "reboot") {
		t.Errorf("%s is nil: fill it in newBooting", missing)
	}
	for _, missing := range unset(b.machine) {
		t.Errorf("%s is nil: fill it in newDummyMachine", missing)
	}
	look, err := lookOnly(config, b.dirs, 0)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := newMachine(look)
	if err != nil {
		t.Fatal(err)
	}
	for _, missing := range unset(opened) {
		t.Errorf("%s is nil: fill it in newMachine", missing)
	}
	for _, missing := range unwired(reflect.ValueOf(newServing(b, &task.Tasks{}).deps), "Deps") {
		t.Errorf("%s is nil: fill it in newServing", missing)
	}
	if err := b.display.rec.Flush(); err != nil {
		t.Error(err)
	}
	// The check itself, on a table without parts.
	if missing := unset(&machine{}); len(missing) < 16 {
		t.Errorf("found only %q", missing)
	}
	if missing := unwired(reflect.ValueOf(action.Deps{SSH: &action.SSH{}}), "Deps"); len(missing) < 20 {
		t.Errorf("found only %q", missing)
	}
}

// unset names the fields of the struct at p that have no value, but for those that may have none.
func unset(p any, may ...string) (missing []string) {
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains(may, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// unwired names the exported parts below v that are nil.
func unwired(v reflect.Value, name string) (missing []string) {
	switch v.Kind() {
	case reflect.Interface, reflect.Func, reflect.Pointer, reflect.Slice:
		if v.IsNil() {
			return []string{name}
		}
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type().PkgPath() != reflect.TypeFor[action.Deps]().PkgPath() {
		return nil
	}
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() {
			missing = append(missing, unwired(v.Field(i), name+"."+field.Name)...)
		}
	}
	return missing
}
