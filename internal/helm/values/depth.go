package values

import (
	"fmt"
	"regexp"
	"strings"
	"text/template"
	"unicode"
)

// mostDepth is how deep blocks and parentheses of a template may be nested together. The parser calls itself for each
// of them, so its stack grows with the depth: 20 KB of parentheses take 17 MB.
const mostDepth = 100

// ErrTooDeep means that a template is not parsed because of its depth.
var ErrTooDeep = fmt.Errorf("blocks and parentheses are nested more than %d deep", mostDepth)

// ParseBounded parses a template whose actions begin with left and end with right, unless it is nested too deep.
func ParseBounded(into *template.Template, left, right, text string) (*template.Template, error) {
	if depth, at := depthOf(text, left, right, mostDepth); depth > mostDepth {
		return nil, fmt.Errorf("%s:%d: %w; move the inner ones to a template of their own with define, or keep their result in a variable",
			into.Name(), 1+strings.Count(text[:at], "\n"), ErrTooDeep)
	}
	return into.Delims(left, right).Parse(text)
}

// depthOf returns how deep the parser would call itself at most for a template, and where it gets there. It stops at
// the first place deeper than most.
//
// It reads tokens as the parser does, up to the first error that the parser finds. What follows does not matter.
func depthOf(text, left, right string, most int) (depth, at int) {
	n := nesting{most: most, right: right}
	for pos := 0; n.deepest <= most; {
		start := strings.Index(text[pos:], left)
		if start < 0 {
			break
		}
		pos += start + len(left)
		if comment := comment.FindString(text[pos:min(len(text), pos+len("- /*"))]); comment != "" {
			pos += len(comment)
			end := strings.Index(text[pos:], "*/")
			if end < 0 {
				break
			}
			pos += end + len("*/")
			continue
		}
		pos += n.action(text[pos:], pos)
	}
	return n.deepest, n.at
}

// comment matches how a comment begins, after the delimiter.
var comment = regexp.MustCompile(`^(-[ \t\r\n])?/\*`)

// nesting counts open blocks and parentheses.
type nesting struct {
	// blocks holds for each open block how many levels its end closes: each else if and else with is one more.
	blocks []int
	// open is the sum of blocks and the number of open parentheses.
	open              int
	most, deepest, at int
	// right ends an action.
	right string
}

func (n *nesting) add(levels, at int) {
	if n.open += levels; n.open > n.deepest {
		n.deepest, n.at = n.open, at
	}
}

// action counts what an action opens and closes, and returns its length. The action stands at a position of the text.
func (n *nesting) action(text string, at int) int {
	parentheses, last := 0, ""
	for i := 0; i < len(text) && n.deepest <= n.most; {
		switch c := text[i]; {
		case strings.HasPrefix(text[i:], n.right):
			n.open -= parentheses // The parser refuses an action that leaves some open.
			return i + len(n.right)
		case c == '"' || c == '\'' || c == '`':
			i += quoted(text[i:])
		case c == '(':
			parentheses++
			n.add(1, at+i)
			i++
		case c == ')':
			parentheses--
			n.add(-1, at+i)
			i++
		default:
			word := text[i : i+wordLength(text[i:])]
			if isField := i > 0 && (text[i-1] == '.' || text[i-1] == '$'); !isField {
				n.word(word, last, at+i)
			}
			if word != "" {
				last = word
			}
			i += max(1, len(word))
		}
	}
	return len(text)
}

// word counts a word of an action that stands after another one.
func (n *nesting) word(word, last string, at int) {
	top := len(n.blocks) - 1
	switch word {
	case "if", "with", "range", "block", "define":
		if last == "else" && top >= 0 {
			n.blocks[top]++
		} else {
			n.blocks = append(n.blocks, 1)
		}
		n.add(1, at)
	case "end":
		if top >= 0 {
			n.add(-n.blocks[top], at)
			n.blocks = n.blocks[:top]
		}
	}
}

// quoted returns the length of the quoted text at the start of a text.
func quoted(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == text[0]:
			return i + 1
		case text[i] == '\\' && text[0] != '`':
			i++
		}
	}
	return len(text)
}

// wordLength returns the length of the word at the start of a text.
func wordLength(text string) int {
	end := strings.IndexFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		return len(text)
	}
	return end
}
