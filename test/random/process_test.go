package random

import "math/rand/v2"

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
