package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
)

// maxExactInteger is the limit up to which float64 holds every integer.
const maxExactInteger = 1 << 53

// appendCanonical appends what encoding/json makes of a value that has been through
// JSON once: keys are sorted, and an int64 and the float64 that a cache decodes it to
// are the same number. Template values are hashed at every reconcile of a Cluster, and
// going through JSON twice was a third of an import.
func appendCanonical(buffer []byte, value any) []byte {
	switch typed := value.(type) {
	case nil:
		return append(buffer, "null"...)
	case bool:
		return strconv.AppendBool(buffer, typed)
	case string:
		return appendString(buffer, typed)
	case int64:
		return appendNumber(buffer, float64(typed))
	case float64:
		return appendNumber(buffer, typed)
	case *fleetv1.GenericMap:
		if typed == nil {
			return append(buffer, "null"...)
		}
		return appendCanonical(buffer, typed.Data)
	case map[string]any:
		return appendMap(buffer, typed)
	case []any:
		return appendList(buffer, typed)
	default:
		var plain any
		if err := json.Unmarshal(encode(value), &plain); err != nil {
			panic(fmt.Sprintf("hashing %T: %v", value, err))
		}
		return appendCanonical(buffer, plain)
	}
}

func appendMap(buffer []byte, object map[string]any) []byte {
	if object == nil {
		return append(buffer, "null"...)
	}
	buffer = append(buffer, '{')
	for i, key := range slices.Sorted(maps.Keys(object)) {
		if i > 0 {
			buffer = append(buffer, ',')
		}
		buffer = append(appendString(buffer, key), ':')
		buffer = appendCanonical(buffer, object[key])
	}
	return append(buffer, '}')
}

func appendList(buffer []byte, list []any) []byte {
	if list == nil {
		return append(buffer, "null"...)
	}
	buffer = append(buffer, '[')
	for i, item := range list {
		if i > 0 {
			buffer = append(buffer, ',')
		}
		buffer = appendCanonical(buffer, item)
	}
	return append(buffer, ']')
}

func appendNumber(buffer []byte, number float64) []byte {
	if number == math.Trunc(number) && math.Abs(number) < maxExactInteger {
		return strconv.AppendInt(buffer, int64(number), 10)
	}
	return append(buffer, encode(number)...)
}

func appendString(buffer []byte, text string) []byte {
	begin := len(buffer)
	buffer = append(buffer, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			buffer = append(buffer, '\\', c)
		case c == '\n':
			buffer = append(buffer, '\\', 'n')
		case c == '\t':
			buffer = append(buffer, '\\', 't')
		case c < ' ' || c > '~' || c == '<' || c == '>' || c == '&':
			return append(buffer[:begin], encode(text)...)
		default:
			buffer = append(buffer, c)
		}
	}
	return append(buffer, '"')
}

func encode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // Only values that came from JSON are hashed.
		panic(fmt.Sprintf("hashing %T: %v", value, err))
	}
	return data
}
