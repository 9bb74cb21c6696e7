// Package spelling finds the known word that is most similar to a misspelled one, for messages such as "did you mean
// …?".
package spelling

// Nearest returns the known word with the smallest edit distance to word, and the distance. It returns "" if known is
// empty.
func Nearest(word string, known []string) (best string, edits int) {
	for i, k := range known {
		if d := Distance(word, k); i == 0 || d < edits {
			best, edits = k, d
		}
	}
	return best, edits
}

// Distance returns the number of insertions, deletions and replacements between two short words.
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
