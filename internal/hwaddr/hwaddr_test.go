package hwaddr

import "testing"

func TestParse(t *testing.T) {
	const infiniBand = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:bc:0d"
	for _, tt := range []struct{ in, want string }{
		{"52:54:00:0a:bc:0d", "52:54:00:0a:bc:0d"},
		{"52-54-00-0A-BC-0D", "52:54:00:0a:bc:0d"},
		{" 5254.000a.bc0d ", "52:54:00:0a:bc:0d"},
		{"5254000ABC0D", "52:54:00:0a:bc:0d"},
		{"52:54:0:a:bc:d", "52:54:00:0a:bc:0d"},
		{infiniBand, infiniBand},
		{"", ""}, {"52:54:00:0a:bc", ""}, {"52:54:00:0a:bc:0d:0e", ""}, {"52:54:00:0a:bc:0g", ""},
		{"5254.000a", ""}, {"525:400:0a:bc:0d", ""},
	} {
		got, err := Parse(tt.in)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q: got %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}
