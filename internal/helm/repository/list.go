package repository

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/helm/worker"
)

// list is what a repository says of its versions. The Client remembers it compressed, and a child reads it.
type list struct {
	*Client
	request Request
	// key identifies the list among the answers, and at is its address.
	key, at string
	inTags  bool
	// write downloads the list.
	write func(ctx context.Context, into io.Writer) error
}

// compressed is a list as the Client remembers it.
type compressed struct {
	parts [][]byte
	at    time.Time
}

// mostCompressed limits the bytes of a list that the Client remembers. An index compresses to a quarter, or less.
func (c *Client) mostCompressed() int64 { return c.MaxIndex / 3 }

// read downloads the list, unless the Client remembers it from less than maxAge ago.
func (l *list) read(ctx context.Context, maxAge time.Duration) (at time.Time, err error) {
	known, err := once(ctx, l.Client, l.request.Namespace, l.key, maxAge, func(ctx context.Context) (*compressed, int, error) {
		body := &spool{budget: l.budget, namespace: l.request.Namespace, most: l.mostCompressed()}
		defer body.end()
		buffer := bufio.NewWriterSize(body, 32<<10)
		packed, err := gzip.NewWriterLevel(buffer, gzip.BestSpeed)
		if err == nil {
			err = l.write(ctx, packed)
		}
		if err == nil {
			if err = errors.Join(packed.Close(), buffer.Flush()); err != nil {
				err = shown(l.at, err)
			}
		}
		return &compressed{body.parts, l.now()}, int(body.size), err
	})
	if err != nil {
		return at, err
	}
	return known.at, nil
}

// parts returns the compressed list while the Client remembers it.
func (l *list) parts() ([][]byte, error) {
	known, isKnown := l.answers.get(l.key, time.Time{}).(*compressed)
	if !isKnown {
		return nil, failf("", "too many other lists of versions are in use")
	}
	return known.parts, nil
}

func (l *list) search(wanted string) worker.Search {
	return worker.Search{Chart: l.request.Chart, Wanted: wanted, InTags: l.inTags}
}

// find returns the entry with this version, or else the newest in a range. If the list has none, find downloads the list
// again: the version may be new.
func (l *list) find(ctx context.Context, wanted string) (entry worker.Entry, err error) {
	for _, maxAge := range []time.Duration{l.Interval, min(l.Interval, slow)} {
		var at time.Time
		if at, err = l.read(ctx, maxAge); err != nil {
			return entry, err
		}
		key := l.request.key("entry", l.key, l.request.Chart, wanted, at.String())
		entry, err = once(ctx, l.Client, l.request.Namespace, key, forever, func(ctx context.Context) (worker.Entry, int, error) {
			found, err := l.Pool.Find(ctx, l.request.Namespace, l.search(wanted), l.parts)
			if err = l.meaning(found, wanted, err); err != nil {
				return worker.Entry{}, 0, err
			}
			return found.Entry, 1<<10 + found.Size(), nil
		})
		if reason := ReasonOf(err); reason != NoChart && reason != NoVersion {
			return entry, err
		}
	}
	return entry, err
}

// versions returns all versions.
func (l *list) versions(ctx context.Context) ([]string, error) {
	if _, err := l.read(ctx, l.Interval); err != nil {
		return nil, err
	}
	parts, err := l.parts()
	if err != nil {
		return nil, err
	}
	text := net.Buffers(slices.Clone(parts))
	all, err := worker.Versions(l.search(""), &text)
	return all, l.meaning(worker.Found{Entry: worker.Entry{Version: "all"}, Versions: len(all)}, "", err)
}

// meaning returns the error of a search.
func (l *list) meaning(found worker.Found, wanted string, err error) error {
	var wrong worker.Problem
	switch {
	case errors.As(err, &wrong):
		return failf(Invalid, "%s %s", l.at, wrong)
	case err != nil:
		return fmt.Errorf("%s: %w", l.at, err)
	case found.Versions == 0:
		return failf(NoChart, "repository %s has no chart %q", bare(l.request.RepoURL), l.request.Chart)
	case found.Version == "":
		return failf(NoVersion, "repository %s has no version %q of chart %q", bare(l.request.RepoURL), wanted, l.request.Chart)
	default:
		return nil
	}
}
