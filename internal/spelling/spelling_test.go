package spelling

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"plan", "plan", 0}, {"", "run", 3}, {"statu", "status", 1}, {"statsu", "status", 2},
		{"pln", "plan", 1}, {"kitten", "sitting", 3}} {
		if got, back := Distance(c.a, c.b), Distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: %d, the other way round %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"run", "status", "settings"}
	for word, want := range map[string]string{"statsu": "status", "setting": "settings", "rum": "run"} {
		if got, _ := Nearest(word, known); got != want {
			t.Errorf("nearest to %q: %q, want %q", word, got, want)
		}
	}
	if got, _ := Nearest("run", nil); got != "" {
		t.Errorf("nearest of no words: %q", got)
	}
}
