package plan

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/Masterminds/sprig/v3"
)

const (
	// MaxTemplate is how long a values template may be, in characters; the CRD says so, too.
	MaxTemplate = 131072
	// maxNumbers is how many numbers until, untilStep and seq may give.
	maxNumbers = 10_000
	// maxNumber is how large a number may be that they begin or end with.
	maxNumber = 1_000_000_000
	// maxCostly is how often what takes much computing may be called for one Cluster.
	maxCostly = 8
	// maxDepth is how deeply lists and maps may lie in each other.
	maxDepth = 100
)

// patience is how long the values of one Cluster may take. It is a variable for tests.
var patience = 5 * time.Second

// limitError says which limit a template goes beyond, and nothing of what is in the data.
type limitError string

func (e limitError) Error() string { return string(e) }

func beyond(format string, args ...any) error { return limitError(fmt.Sprintf(format, args...)) }

// costly are functions that take much computing each time.
var costly = map[string]bool{
	"genPrivateKey": true, "genCA": true, "genCAWithKey": true, "genSelfSignedCert": true, "genSelfSignedCertWithKey": true,
	"genSignedCert": true, "genSignedCertWithKey": true, "derivePassword": true, "bcrypt": true, "htpasswd": true,
}

// built are the functions of text/template itself that make text of what they are given.
var built = template.FuncMap{
	"print": fmt.Sprint, "println": fmt.Sprintln, "printf": fmt.Sprintf,
	"html": template.HTMLEscaper, "js": template.JSEscaper, "urlquery": template.URLQueryEscaper,
}

// rendering bounds one rendering.
type rendering struct {
	until time.Time
	costs int
}

// inTime returns an error when time is up.
func (r *rendering) inTime() error {
	if time.Now().After(r.until) {
		return beyond("the template takes longer than %s", patience)
	}
	return nil
}

// bound returns a function that checks, before it does what the other does, that there is
// time left, and that what it is given and what it makes is not too large.
func (r *rendering) bound(name string, function any) any {
	inner := reflect.ValueOf(function)
	its := inner.Type()
	failure := reflect.TypeFor[error]()
	in, out := make([]reflect.Type, its.NumIn()), []reflect.Type{its.Out(0), failure}
	for i := range in {
		in[i] = its.In(i)
	}
	outer := reflect.FuncOf(in, out, its.IsVariadic())
	return reflect.MakeFunc(outer, func(args []reflect.Value) []reflect.Value {
		result, err := r.call(name, inner, args)
		if err != nil {
			return []reflect.Value{reflect.Zero(out[0]), reflect.ValueOf(&err).Elem()}
		}
		return []reflect.Value{result, reflect.Zero(failure)}
	}).Interface()
}

func (r *rendering) call(name string, inner reflect.Value, args []reflect.Value) (reflect.Value, error) {
	if err := r.inTime(); err != nil {
		return reflect.Value{}, err
	}
	if costly[name] {
		if r.costs++; r.costs > maxCostly {
			return reflect.Value{}, beyond("the template calls functions that take much computing, such as %s, more than %d times", name, maxCostly)
		}
	}
	left := MaxValues
	for _, arg := range args {
		if !weigh(arg, &left, maxDepth) {
			return reflect.Value{}, beyond("the template gives %s more than %d KiB", name, MaxValues>>10)
		}
	}
	if check := grows[name]; check != nil {
		if err := check(args); err != nil {
			return reflect.Value{}, err
		}
	}
	call := inner.Call
	if inner.Type().IsVariadic() {
		call = inner.CallSlice
	}
	results := call(args)
	if len(results) == 2 && !results[1].IsNil() {
		return reflect.Value{}, results[1].Interface().(error)
	}
	if left = MaxValues; !weigh(results[0], &left, maxDepth) {
		return reflect.Value{}, errTooLarge
	}
	return results[0], nil
}

// weigh takes what a value weighs, in bytes or so, from what is left. It reports whether that
// was enough.
func weigh(value reflect.Value, left *int, depth int) bool {
	if *left--; *left < 0 || depth == 0 {
		return false
	}
	switch value.Kind() {
	case reflect.Interface, reflect.Pointer:
		return value.IsNil() || weigh(value.Elem(), left, depth-1)
	case reflect.String:
		*left -= value.Len()
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if !weigh(value.Index(i), left, depth-1) {
				return false
			}
		}
	case reflect.Map:
		for each := value.MapRange(); each.Next(); {
			if !weigh(each.Key(), left, depth-1) || !weigh(each.Value(), left, depth-1) {
				return false
			}
		}
	}
	return *left >= 0
}

// grows bounds functions that make much of little, before they do.
var grows = map[string]func(args []reflect.Value) error{
	"repeat":    func(args []reflect.Value) error { return product(args[0].Int(), int64(args[1].Len())) },
	"until":     func(args []reflect.Value) error { return numbers(0, args[0].Int(), 1) },
	"untilStep": func(args []reflect.Value) error { return numbers(args[0].Int(), args[1].Int(), args[2].Int()) },
	"seq": func(args []reflect.Value) error {
		all := args[0].Interface().([]int)
		start, step, end := 1, 1, 0
		switch len(all) {
		case 1:
			end = all[0]
		case 2:
			start, end = all[0], all[1]
		case 3:
			start, step, end = all[0], all[1], all[2]
		}
		return numbers(int64(start), int64(end), int64(step))
	},
	"randAlphaNum": atMost, "randAlpha": atMost, "randAscii": atMost, "randNumeric": atMost, "randBytes": atMost,
	"indent":                 indents,
	"nindent":                indents,
	"join":                   func(args []reflect.Value) error { return product(int64(args[0].Len()), lengthOf(args[1])) },
	"replace":                replaces(1, 2),
	"regexReplaceAll":        replaces(2, 1),
	"mustRegexReplaceAll":    replaces(2, 1),
	"regexReplaceAllLiteral": replaces(2, 1), "mustRegexReplaceAllLiteral": replaces(2, 1),
	"wrapWith": replaces(1, 2),
	"printf": func(args []reflect.Value) error {
		if wide.MatchString(args[0].String()) {
			return beyond("the template has printf pad to more than 999 characters, or to a width that it is given")
		}
		return nil
	},
}

// wide finds widths and precisions of more than three digits, and those that are arguments.
var wide = regexp.MustCompile(`%[^a-zA-Z%]*([0-9]{4}|\*)`)

func atMost(args []reflect.Value) error { return product(args[0].Int(), 1) }

func indents(args []reflect.Value) error {
	return product(args[0].Int(), int64(strings.Count(args[1].String(), "\n")+1))
}

// replaces bounds a function that puts one argument in place of what it finds in another.
func replaces(with, in int) func([]reflect.Value) error {
	return func(args []reflect.Value) error {
		return product(int64(args[with].Len()), int64(args[in].Len())/16+1)
	}
}

func lengthOf(value reflect.Value) int64 {
	if value.Kind() == reflect.Interface {
		value = value.Elem()
	}
	if kind := value.Kind(); kind == reflect.Slice || kind == reflect.Array || kind == reflect.Map {
		return int64(value.Len())
	}
	return 1
}

// product refuses what becomes too large: so many times so much.
func product(times, size int64) error {
	if times > 0 && size > 0 && times > 16*MaxValues/size {
		return errTooLarge
	}
	return nil
}

func numbers(start, end, step int64) error {
	for _, its := range []int64{start, end, step} {
		if its > maxNumber || its < -maxNumber {
			return beyond("the template counts with numbers beyond %d", maxNumber)
		}
	}
	if step == 0 {
		step = 1
	}
	if count := (end - start) / step; count > maxNumbers || count < -maxNumbers {
		return beyond("the template counts more than %d numbers at once", maxNumbers)
	}
	return nil
}

// functions are those that a template may use, bounded for one rendering; only those named
// if names are given.
func (r *rendering) functions(named map[string]bool) template.FuncMap {
	all := sprig.TxtFuncMap()
	for name, function := range built {
		all[name] = function
	}
	for _, name := range withheld {
		delete(all, name)
	}
	result := template.FuncMap{}
	for name, function := range all {
		if named == nil || named[name] {
			result[name] = r.bound(name, function)
		}
	}
	return result
}

// tick has every branch, every turn of a loop, and every template that is called, write something, if only
// nothing: writing is where the time is looked at.
func tick(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch typed := node.(type) {
		case *parse.IfNode:
			tick(typed.List)
			tick(typed.ElseList)
		case *parse.WithNode:
			tick(typed.List)
			tick(typed.ElseList)
		case *parse.RangeNode:
			tick(typed.List)
			tick(typed.ElseList)
		}
	}
	list.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText}}, list.Nodes...)
}
