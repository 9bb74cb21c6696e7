package jsoncut

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestLengthIsThatOfMarshal cuts texts of one kind of rune to each length.
func TestLengthIsThatOfMarshal(t *testing.T) {
	length := func(text string) int {
		data, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return len(data) - len(`""`)
	}
	units := []string{"x", "é", "世", "😀", "\n", "\b", `"`, `\`, "\x01", "\x7f", "<", "&", "\u2028", "\ufffd", "\xff"}
	for _, unit := range units {
		text := strings.Repeat(unit, 5)
		for room := range length(text) + 2 {
			want := strings.Repeat(unit, min(5, room/length(unit)))
			if got := Head(text, room); got != want {
				t.Errorf("the first %d bytes of %q: got %q, want %q", room, text, got, want)
			}
			if got := Tail(text, room); got != want {
				t.Errorf("the last %d bytes of %q: got %q, want %q", room, text, got, want)
			}
		}
	}
}
