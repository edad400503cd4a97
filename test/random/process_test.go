package random

import (
	"math/rand/v2"
)

// collectorProcess has the garbage collector, and what else may wait for a while.
const collectorProcess = "kube-controller-manager"

var processOperations = []operation{
	{name: quiet, weight: 14, draw: nothing},
	{name: "SyncerStop", weight: 2, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopSyncer(env.Stop) }},
	{name: "SyncerKill", weight: 2, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopSyncer(env.Kill) }},
	{name: "WebhookStop", weight: 2, draw: nothing, do: func(r *run, _ Step) (bool, error) {
		if !r.webhookUp {
			return false, nil
		}
		r.webhookUp = false
		return true, env.Stop(ctx, webhookProcess)
	}},
	{name: "WebhookStart", weight: 6, draw: nothing, do: func(r *run, _ Step) (bool, error) {
		wasDown := !r.webhookUp
		return wasDown, r.startWebhook()
	}},
	// What it had not collected yet when it stopped is anybody's guess.
	{name: "StopGC", weight: 3, draw: nothing, do: stopCollector, racy: always},
	{name: "StartGC", weight: 5, draw: nothing, do: func(r *run, _ Step) (bool, error) {
		wasDown := r.state.GarbageStays
		return wasDown, r.startCollector()
	}},
}

// stopCollector stops the garbage collector: what is owned by what was deleted stays.
func stopCollector(r *run, _ Step) (bool, error) {
	if r.state.GarbageStays {
		return false, nil
	}
	if err := r.waitCollected(); err != nil {
		return false, err
	}
	if !r.syncerUp { // Then nobody else has changed anything.
		seen, err := r.look()
		if err != nil {
			return false, err
		}
		r.state = seen
	}
	r.state.GarbageStays = true
	return true, env.Kill(ctx, collectorProcess)
}

func (r *run) startCollector() error {
	if !r.state.GarbageStays {
		return nil
	}
	r.state.GarbageStays = false
	return env.Start(ctx, collectorProcess)
}

func nothing(*rand.Rand, *Step) {}

func (r *run) startWebhook() error {
	if r.webhookUp {
		return nil
	}
	r.webhookUp = true
	if err := env.Start(ctx, webhookProcess); err != nil {
		return err
	}
	return r.waitForWebhook()
}
