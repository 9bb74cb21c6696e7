package disk

import "testing"

// TestFormatsAreComplete: an incomplete row would fail only with a disk that needs it.
func TestFormatsAreComplete(t *testing.T) {
	for _, row := range formats {
		if row.detect == nil || row.read == nil || row.write == nil || row.label.DataType() == "" ||
			row.label.SwapType() == "" || row.label.Slots() == 0 {
			t.Errorf("the row of %q is not complete: %+v", row.label, row)
		}
		a, errA := NewID(row.label)
		b, errB := NewID(row.label)
		if errA != nil || errB != nil || a == b || a == "" {
			t.Errorf("%s: identifiers %q and %q, want two", row.label, a, b)
		}
	}
	if _, err := NewID("bsd"); err == nil {
		t.Error("a label without a row has an identifier")
	}
}
