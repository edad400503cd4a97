package worker

import (
	"errors"
	"io"
	"time"

	"github.com/muster-fleet/muster/internal/helm/values"
)

// kind is the work of a job, as its errors name it.
type kind string

const (
	render kind = "rendering the values"
	check  kind = "checking the values"
	index  kind = "reading the index"
	tags   kind = "reading the tags"
	unpack kind = "unpacking the chart"
)

// limits are how long jobs may take.
var limits = map[kind]time.Duration{render: 5 * time.Second, check: 5 * time.Second, index: 45 * time.Second, tags: 45 * time.Second, unpack: 15 * time.Second}

// job is a message to a child; Size bytes of data follow.
type job struct {
	Kind     kind
	Template string
	Search   Search
	Size     int64
	Limit    time.Duration
}

// result is the answer. The error is a Problem or a *TooLargeError.
type result struct {
	Data  []byte
	Found Found
	Chart *Chart
	Err   error
}

// hand does jobs. It keeps the last template: the next job often renders it for another Cluster.
type hand struct {
	text     string
	template *values.Template
}

// do does one job, and does not panic.
func (h *hand) do(its job, payload io.Reader) (done result) {
	defer func() {
		if recover() != nil {
			done = result{Err: Problem(string(its.Kind) + " failed")}
		}
	}()
	var large *TooLargeError
	if err := h.work(its, payload, &done); errors.As(err, &large) {
		done.Err = large
	} else if err != nil {
		done.Err = Problem(err.Error())
	}
	return done
}

func (h *hand) work(its job, payload io.Reader, done *result) (err error) {
	switch its.Kind {
	case index, tags:
		done.Found, err = find(its.Search, payload)
		return err
	case unpack:
		done.Chart, err = unpacked(payload)
		return err
	}
	data, err := io.ReadAll(payload)
	if err != nil || its.Kind == check {
		return errors.Join(err, values.Check(data))
	}
	if h.template == nil || h.text != its.Template {
		if h.template, err = values.Parse(its.Template); err != nil {
			return err
		}
		h.text = its.Template
	}
	done.Data, err = h.template.RenderJSON(data)
	return err
}
