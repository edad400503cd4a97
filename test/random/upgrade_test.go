package random

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// formerVariable names the revision that TestUpgrade upgrades from.
const formerVariable = "MUSTER_UPGRADE_FROM"

// TestUpgrade plays runs in which Muster is upgraded from a former revision to this one,
// rolled back, and upgraded once more, while everything else goes on: first the manifests
// are applied, and then the programs are replaced, in either order.
//
// Who says what Muster has to make is the oracle of the revision whose syncer runs, and of
// a stamp that of the revision whose webhook runs. Where the two differ on purpose, Muster
// is let come to rest before the one syncer takes over from the other. All that stays is
// the same object throughout, whichever the revision.
func TestUpgrade(t *testing.T) {
	if former == nil {
		t.Fatalf("there is nothing to upgrade from: name a revision in %s", formerVariable)
	}
	first, seeds, count := number(t, "MUSTER_SEED", 1), number(t, "MUSTER_SEEDS", 3), number(t, "MUSTER_STEPS", 60)
	total, differed := 0, 0
	begin := time.Now()
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			begin := time.Now()
			r, err := playUpgrade(seed, count)
			total, differed = total+r.count, differed+r.differed
			t.Logf("seed %d: %d steps in %s", seed, r.count, time.Since(begin).Round(time.Second))
			if err != nil {
				fails(t, seed, r, err)
			}
		})
	}
	fmt.Fprintf(os.Stderr, "%d steps over %d seeds in %s, each with two upgrades and a rollback; at %d of these the revisions differ on purpose\n",
		total, seeds, time.Since(begin).Round(time.Second), differed)
}

// playUpgrade draws as many steps before, between and after the changes of revision, and
// some more while one is under way.
func playUpgrade(seed, count int) (*run, error) {
	r, err := newRun(fmt.Sprintf("u%d", seed), patience)
	if err != nil {
		return r, err
	}
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	churn := func(count int) {
		for until := r.count + count; r.count < until && err == nil; {
			if step := drawStep(rng); bothKnow(step) {
				_, err = r.play(step)
			}
		}
	}
	play := func(step Step) {
		if err == nil {
			_, err = r.play(step)
		}
	}
	churn(count / 4)
	for _, to := range []string{"new", "old", "new"} {
		play(Step{Op: "Apply", Value: to})
		churn(rng.IntN(5))
		restarts := []Step{{Op: "RestartWebhook"}, {Op: "RestartSyncer", Kind: oneOf(rng, "Stop", "Kill")}}
		rng.Shuffle(len(restarts), func(i, j int) { restarts[i], restarts[j] = restarts[j], restarts[i] })
		for _, restart := range restarts {
			play(restart)
			churn(rng.IntN(5))
		}
		play(Step{Op: quiet})
		churn(count / 4)
	}
	if err == nil {
		err = r.quiet()
	}
	return r, errors.Join(err, r.finish(err == nil))
}

// asInstalled puts back what a run begins with, if there is something to upgrade from.
func (r *run) asInstalled() error {
	if former == nil || installed == former && !isSkewed() {
		return nil
	}
	for _, step := range []Step{{Op: "RestartWebhook"}, {Op: "RestartSyncer"}, {Op: "Apply", Value: "old"}, {Op: "RestartWebhook"}, {Op: "RestartSyncer"}} {
		if _, err := operationOf(step.Op).do(r, step); err != nil {
			return err
		}
	}
	return nil
}
