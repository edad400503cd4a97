// Package random is a simulation: it plays everything that can happen to Muster, in any
// order, on a real API server, and compares what Muster makes of it with package oracle.
//
// A run is drawn from a seed. Each of its steps is written down and stands for
// itself: a step whose object does not exist does nothing. So any part of a run can
// be played again, and a run that fails is shortened until nothing can be left out.
//
// One of the namespaces is a tenant's, who has rights there only and forges whatever he
// can. What the syncer makes across namespaces is also held against who was entitled to
// it, without the oracle. In runs of odd seeds the shipped admission policies are taken
// away: nothing may rest on them.
//
// Some Clusters' agents are to call. In two of three runs the registrar runs; Fleet, which does
// not, is played: it deploys, grants and forgets by steps, as people do what they do. In the
// other runs nobody registers such Clusters, and nothing may come of them but a condition.
//
// There are HelmChartProxies, whose charts come from a repository over https that wants a password.
// What Fleet is handed for them is compared by what comes of it: which release in which version on
// which Fleet Cluster, with which values. Of what Fleet does with that, nothing is played.
//
// TestRollouts plays rollouts in stages apart from that, in Scenes of their own and on Fleet's own controller, and judges
// each event (package rollouts).
//
// The garbage collector, the syncer and the webhook are stopped at random. Muster is let
// come to rest before a step only where the end depends on what Muster has seen before:
// what is retained stays as it is, and what is only kept is not made again.
//
// The environment says what is played:
//
//	MUSTER_SEED=7 MUSTER_SEEDS=20 MUSTER_STEPS=250   twenty runs, from seed 7 on
//	MUSTER_REPLAY=steps.jsonl                        the steps that a failure printed
//
// The seed also decides which optional parts there are: the policies in even seeds, the
// registrar in two of three, and class labels by the API server in every other two.
package random
