package monitfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// texts are by file.
type texts map[string]string

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		files    texts
		want     string // names in order
		rejected texts
	}{
		"nothing":         {nil, "", nil},
		"last file first": {texts{"0001_a": "x y", "0002_b": "z", "0000_c": "w"}, "z x y w", nil},
		"across files":    {texts{"1": "x:z", "2": "z"}, "z x", nil},
		"a name twice": {texts{"1": "u\nx", "2": "x", "3": "y"}, "y x",
			texts{"1": `1:2: service "x": the name is already used in line 1 of 2`}},
		"twice in one file": {texts{"1": "x\nx", "2": "y"}, "y",
			texts{"1": `1:2: service "x": the name is already used in line 1 of 1`}},
		"unknown": {texts{"1": "w\nx:z", "2": "y"}, "y",
			texts{"1": `1:2: service "x": depends on "z", which no valid file defines`}},
		"one after the other": {texts{"1": "x:y", "2": "y:z", "3": "z:q", "4": "v"}, "v", texts{
			"1": `1:1: service "x": depends on "y", which no valid file defines`,
			"2": `2:1: service "y": depends on "z", which no valid file defines`,
			"3": `3:1: service "z": depends on "q", which no valid file defines`}},
		"on a duplicate's neighbor": {texts{"1": "x u", "2": "x", "3": "w:u"}, "x", texts{
			"1": `1:1: service "x": the name is already used in line 1 of 2`,
			"3": `3:1: service "w": depends on "u", which no valid file defines`}},
		"itself": {texts{"1": "x:x", "2": "y"}, "y",
			texts{"1": `1:1: service "x": depends on itself: x → x`}},
		"loop": {texts{"1": "x:y", "2": "y:z", "3": "z:x", "4": "v:x", "5": "u"}, "u", texts{
			"1": `1:1: service "x": depends on itself: x → y → z → x`,
			"2": `2:1: service "y": depends on itself: x → y → z → x`,
			"3": `3:1: service "z": depends on itself: x → y → z → x`,
			"4": `4:1: service "v": depends on "x", which no valid file defines`}},
		"two loops": {texts{"1": "a:b", "2": "b:a", "3": "c:d", "4": "d:c", "5": "e"}, "e", texts{
			"1": `1:1: service "a": depends on itself: b → a → b`,
			"2": `2:1: service "b": depends on itself: b → a → b`,
			"3": `3:1: service "c": depends on itself: d → c → d`,
			"4": `4:1: service "d": depends on itself: d → c → d`}},
		"diamond": {texts{"1": "a:b,c b:d c:d d"}, "a b c d", nil},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]Check{}
			for file, services := range test.files {
				files[file] = parsed(t, file, services)
			}
			checks, rejected := Resolve(files)
			var names []string
			for _, c := range checks {
				names = append(names, c.Name)
			}
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(rejected) != len(test.rejected) {
				t.Errorf("rejected %v", rejected)
			}
			for file, want := range test.rejected {
				if got := fmt.Sprint(rejected[file]); got != want {
					t.Errorf("%s: got %q, want %q", file, got, want)
				}
			}
		})
	}
}

// parsed makes a file of words such as a:b,c for a service with dependencies.
func parsed(t *testing.T, file, services string) []Check {
	var text strings.Builder
	for line := range strings.Lines(services) {
		for word := range strings.FieldsSeq(line) {
			name, on, has := strings.Cut(word, ":")
			fmt.Fprintf(&text, "check process %s pidfile /%s ", name, name)
			if has {
				fmt.Fprintf(&text, "depends on %s ", on)
			}
		}
		text.WriteByte('\n')
	}
	checks, err := Parse(file, []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

// TestResolveMany: the time grows with the number of services, not with its square, and the error stays short.
func TestResolveMany(t *testing.T) {
	const n = 10_000
	words := make([]string, n)
	for i := range words {
		words[i] = fmt.Sprintf("s%d:s%d,s0", i, (i+1)%n)
	}
	all := parsed(t, "f", strings.Join(words, " "))
	files := map[string][]Check{}
	for chunk := range slices.Chunk(all, n/100) {
		files[chunk[0].Name] = chunk
	}
	checks, rejected := Resolve(files)
	if len(checks) != 0 || len(rejected) != 100 || len(rejected["s0"].Error()) > 200 {
		t.Errorf("got %d checks, %d rejected, %v", len(checks), len(rejected), rejected["s0"])
	}
}
