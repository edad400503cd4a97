// Package random plays everything that can happen to Muster, in any order, on a real
// API server, and compares what Muster makes of it with package oracle.
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
// The garbage collector, the syncer and the webhook are stopped at random. Muster is let
// come to rest before a step only where the end depends on what Muster has seen before:
// what is frozen stays as it is, and what is only kept is not made again.
//
// TestUpgrade plays runs that begin with a former revision of Muster. The first of them,
// 9207717, makes this differently, so that Muster is let come to rest before one takes over
// from the other where it matters:
//   - It makes groups and mappings for every claimed Cluster, paused and deselected ones
//     included, and for the class that a Fleet Cluster still carries. Now they are made only
//     for Clusters that are selected and not paused; for the others they are kept.
//   - It tells whose a Fleet Cluster is by names where we look at UIDs, and does not note the
//     UID of a Cluster where no owner reference tells it (imported-uid).
//   - It follows a pin that somebody has altered, and leaves keys of Muster's on Fleet's
//     objects that it does not want.
//   - It leaves less out of template values by default, and keeps copies of whole objects.
//   - Turned off, it also leaves the owner reference of a Cluster that is being moved.
//
// The environment says what is played:
//
//	MUSTER_SEED=7 MUSTER_SEEDS=20 MUSTER_STEPS=250   twenty runs, from seed 7 on
//	MUSTER_POLICIES=off                              the shipped admission policies taken away in all runs; or on
//	MUSTER_REGISTRAR=off                             the optional registrar does not run in any; or on
//	MUSTER_CLASS_LABELS=on                           the API server labels Clusters with their class in all; or off
//	MUSTER_REPLAY=steps.jsonl                        the steps that a failure printed
//	MUSTER_UPGRADE_FROM=9207717                      what TestUpgrade begins with
package random
