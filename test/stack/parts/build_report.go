package parts

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
)

// reportEvery is how long a build goes on in silence.
const reportEvery = 10 * time.Second

// buildReport takes what `go build -v` prints. It counts modules and packages, says now
// and then how far that is, and keeps what else is said.
type buildReport struct {
	progress             io.Writer
	said                 time.Time
	downloaded, compiled int
	line, rest           bytes.Buffer
}

func (r *buildReport) Write(text []byte) (int, error) {
	r.line.Write(text)
	for {
		end := bytes.IndexByte(r.line.Bytes(), '\n')
		if end < 0 {
			return len(text), nil
		}
		r.take(string(r.line.Next(end + 1)))
	}
}

func (r *buildReport) take(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		r.downloaded++
	case !strings.ContainsAny(line, " \t:#"):
		r.compiled++
	default:
		r.rest.WriteString(line)
		return
	}
	if time.Since(r.said) < reportEvery {
		return
	}
	r.said = time.Now()
	fmt.Fprintf(r.progress, "build: ... %d modules downloaded, %d packages compiled\n", r.downloaded, r.compiled)
}
