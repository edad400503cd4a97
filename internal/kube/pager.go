package kube

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// pageSize is how many objects are asked for at once.
	pageSize = 500
	// pagerTimeout is how long all pages together may take.
	pagerTimeout = 5 * time.Minute
)

// EachPage lists everything that the options leave, a page at a time because there may be
// thousands of large objects, and returns the last page: its resource version is that of the
// whole. A list that expires halfway is an error: the half would pass for the whole.
func EachPage[L client.ObjectList](ctx context.Context, reader client.Reader, empty L, each func(L), options ...client.ListOption) (L, error) {
	ctx, cancel := context.WithTimeout(ctx, pagerTimeout)
	defer cancel()
	for token := ""; ; {
		list := empty.DeepCopyObject().(L) // Decoding into the same list would mix the pages.
		if err := reader.List(ctx, list, append([]client.ListOption{client.Limit(pageSize), client.Continue(token)}, options...)...); err != nil {
			return list, err
		}
		each(list)
		if token = list.GetContinue(); token == "" {
			return list, nil
		}
	}
}
