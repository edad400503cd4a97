// Package random is a simulation: it plays everything that can happen to Muster, in any order, on a real API server,
// and compares Muster's objects with package oracle.
//
// Each run is drawn from a seed. The run records its steps, and each step is independent of the others: a step whose
// object does not exist does nothing. So any part of a run can be replayed, and a failing run is shortened until no
// step can be left out.
//
// One of the namespaces belongs to a tenant, who has rights only there and forges whatever he can. For objects that
// the syncer makes across namespaces, the run also checks, without the oracle, that an entitled user asked for them.
// In runs of odd seeds the shipped admission policies are removed: Muster must not rely on them.
//
// Some Clusters' agents register themselves. The registrar runs in two of three runs. Fleet does not run; steps play
// its deploying, granting, refusing and forgetting, as other steps play users. In the other runs no registrar registers such
// Clusters, and all that they get is a condition.
//
// There are HelmChartProxies. Their charts come from a repository over https that requires a password. The run
// compares the effect of the objects that Fleet would get: which release, in which version, on which Fleet Cluster,
// with which values. A few steps play Fleet's own work on them. Some HelmChartProxies ask for the same release, and
// Fleet's Policies refuse some; while any of them waits, Muster comes to rest at every step.
//
// Some steps undo a change within a second: a label that selectors select by is taken off and put back, and a Fleet
// Cluster or the FleetAddonConfig is deleted and made again. Others set the record of a release back to an older one.
//
// TestRollouts plays rollouts in stages separately, in Scenes of their own and on Fleet's own controller, and judges
// each event (package rollouts).
//
// TestRancher plays Turtles and Rancher separately, and users who change their objects and Clusters. It kills Muster in
// the middle of that, and judges each event of a Fleet Cluster: Muster makes none where Rancher has one or will have
// one, and changes no field of Rancher's. When Muster is at rest, each Cluster must report what docs/rancher.md
// promises.
//
// The garbage collector, the syncer and the webhook are stopped at random. The run lets Muster come to rest before a
// step only where the result depends on what Muster has seen before: retained objects stay as they are, and kept
// objects are not made again.
//
// These environment variables choose the runs:
//
//	MUSTER_SEED=7 MUSTER_SEEDS=20 MUSTER_STEPS=250   twenty runs, from seed 7 on
//	MUSTER_REPLAY=steps.jsonl MUSTER_SEED=7          the steps that a failure of the seed 7 printed
//
// The seed also decides the optional parts: the policies in even seeds, the
// registrar in two of three, and class labels by the API server in every other two.
package random
