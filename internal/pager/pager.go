// Package pager lists objects a page at a time: there may be thousands, each of them large.
package pager

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Small is an option for the programs that run in the management cluster. A page of this size fits into their memory, even
// if each of its objects has the size that etcd accepts.
const Small = client.Limit(20)

// size is the number of objects in a page, unless an option is another client.Limit.
const size = 500

// Timeout is how long the API server may take to list all objects of a kind, in pages or for a cache: nothing says how far it
// is. It is longer than lists of thousands of Clusters take on a busy API server.
const Timeout = 10 * time.Minute

// Each lists all objects that match the options, page by page, and returns the last page, which has the resource
// version of the whole list. If the list expires halfway, Each returns an error, so that no caller mistakes a part
// for the whole.
func Each[L client.ObjectList](ctx context.Context, reader client.Reader, empty L, each func(L), options ...client.ListOption) (L, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
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
