// Package queue brings objects into the queues of controllers beside their events.
package queue

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Events bring objects back by events of our own.
type Events = chan event.GenericEvent

// Feed asks at an interval which objects are to be brought back, and sends an event for
// each into the channel for it, until the context ends.
func Feed(ctx context.Context, interval time.Duration, due func() []client.Object, channel func(client.Object) Events) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, object := range due() {
			select {
			case <-ctx.Done():
				return
			case channel(object) <- event.GenericEvent{Object: object}:
			}
		}
	}, interval)
	return nil
}
