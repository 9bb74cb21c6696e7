// Package spelling finds the known word that a misspelled one is nearest to, for messages such as
// "did you mean …?".
package spelling

// Nearest returns the known word with the fewest edits between it and word, the first of several,
// and the number of edits. It returns "" if no word is known.
func Nearest(word string, known []string) (best string, edits int) {
	for i, k := range known {
		if d := Distance(word, k); i == 0 || d < edits {
			best, edits = k, d
		}
	}
	return best, edits
}

// Distance counts insertions, deletions and replacements between two short words.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
