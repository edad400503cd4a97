// Package pager lists objects a page at a time: there may be thousands, each of them large.
package pager

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// size is how many objects are asked for at once.
	size = 500
	// timeout is how long all pages together may take.
	timeout = 5 * time.Minute
)

// Each lists everything that the options leave, a page at a time, and returns the last page:
// its resource version is that of the whole. A list that expires halfway is an
// error: the half would pass for the whole.
func Each[L client.ObjectList](ctx context.Context, reader client.Reader, empty L, each func(L), options ...client.ListOption) (L, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for token := ""; ; {
		list := empty.DeepCopyObject().(L) // Decoding into the same list would mix the pages.
		if err := reader.List(ctx, list, append([]client.ListOption{client.Limit(size), client.Continue(token)}, options...)...); err != nil {
			return list, err
		}
		each(list)
		if token = list.GetContinue(); token == "" {
			return list, nil
		}
	}
}
