package oracle

import (
	"fmt"
	"strings"
)

// linesAround is how many equal lines are shown around a difference.
const linesAround = 3

// Diff returns a unified diff of two views, or "" if they are equal.
func Diff(want, got string) string {
	if want == got {
		return ""
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var lines, headings []string
	heading := ""
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			if strings.HasPrefix(a[i], "--- ") {
				heading = a[i]
			}
			lines = append(lines, " "+a[i])
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			lines = append(lines, "-"+a[i])
			i++
		default:
			lines = append(lines, "+"+b[j])
			j++
		}
		headings = append(headings, heading)
	}
	return hunks(lines, headings)
}

// hunks leaves out what is equal and far from any difference.
func hunks(lines, headings []string) string {
	var text strings.Builder
	text.WriteString("--- expected\n+++ seen\n")
	last := -1
	for i := range lines {
		near := false
		for k := max(0, i-linesAround); k <= min(len(lines)-1, i+linesAround); k++ {
			near = near || lines[k][0] != ' '
		}
		if !near {
			continue
		}
		if last != i-1 || i == 0 {
			fmt.Fprintf(&text, "@@ %s @@\n", strings.TrimPrefix(headings[i], "--- "))
		}
		fmt.Fprintln(&text, lines[i])
		last = i
	}
	return text.String()
}
