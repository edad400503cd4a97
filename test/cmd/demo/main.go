// Command demo plays Muster's main job on the stack of `make up`, with real objects and
// real controllers, and prints what happens. Each line with a check mark was checked:
// the command fails at the first that does not hold.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/muster-fleet/muster/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\n  ✗ %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "check-clean" {
		return checkClean(ctx)
	}
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	env, err := stack.Attach(dir)
	if err != nil {
		return fmt.Errorf("no stack to play on; run make up first: %w", err)
	}
	story := &story{Stack: env, begin: time.Now()}
	for _, act := range []func(context.Context) error{
		story.configure, story.addClass, story.addBundles, story.addClusters,
		// While Cluster API provisions, which takes half a minute.
		story.deployDownstream,
		story.waitForClusters, story.checkTargets, story.becomeReady, story.showTree,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	story.showNext()
	return nil
}

// checkClean fails if the demo was played on this stack before: its clusters live in
// the memory of the old processes, so it starts over on a new stack.
func checkClean(ctx context.Context) error {
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	env, err := stack.Attach(dir)
	if err != nil {
		return nil //nolint:nilerr // no stack: clean
	}
	if _, err := env.Kubectl(ctx, "get", "namespace", platform); err == nil {
		return errors.New("the demo was played on this stack before")
	}
	return nil
}
