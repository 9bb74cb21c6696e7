package intent

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzIntents: a file of intents is used whole or called damaged, and what was read is what is read after it was written
// again.
func FuzzIntents(f *testing.F) {
	for _, seed := range []string{`{}`, `{".ephemeral":{"table":"AAAA"},".migration":{"table":"vol-1 to vol-2","exact":true}}`, `{"vol-1":null}`, `{".migration":{"table":" to "}}`, ``, `null`, `[]`} {
		f.Add([]byte(seed))
	}
	file := File{Path: filepath.Join(f.TempDir(), "intents.json")}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file.Path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := file.All()
		if err != nil {
			if !errors.Is(err, ErrDamaged) || all != nil {
				t.Fatalf("got %v with %v, want nothing but that it is damaged", all, err)
			}
			return
		}
		for _, i := range all {
			from, to, moves := strings.Cut(i.Table, " to ")
			if moves && to != "" && (!i.Moves(to) || !i.Concerns(to) || !i.Concerns(from)) {
				t.Fatalf("%q moves %v and concerns %v, %v", i.Table, i.Moves(to), i.Concerns(to), i.Concerns(from))
			}
		}
		if err := file.write(all); err != nil {
			t.Fatal(err)
		}
		if second, err := file.All(); err != nil || !reflect.DeepEqual(second, all) {
			t.Fatalf("%v became %v, %v", all, second, err)
		}
	})
}
