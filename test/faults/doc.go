// Command faults lets things break under a running Muster, many times and at random
// moments, and demands that it comes out as if nothing had been.
//
// A run has namespaces of its own. People (see churn.go) create Clusters there,
// initialize, relabel, rebase and delete them, change control-plane objects, classes and
// the FleetAddonConfig. In the middle of it a fault strikes; they go on until it is over.
// Then they stop, and what is there is compared with what package oracle makes of their
// wishes alone, starting from nothing: that a Cluster was imported before the fault does
// not count in favour of what is there after it.
//
// Where charts is set of a fault, one of them also writes, changes and deletes HelmChartProxies, and
// the optional component helm carries them out.
//
// What the table says:
//
//   - converged: runs in which Muster made all that the oracle expects, and nothing else,
//     within the deadline, labels, template values and conditions included, and in which
//     the webhook answers as before. Longest and median are the time that took: from the
//     end of the fault (from the kill, where others take over), and from the last change
//     people made if that was later only where the fault lasts until they stop.
//   - lost: objects that the oracle expects and that are missing at the deadline.
//   - orphaned: objects of Muster that the oracle does not expect, at the deadline, or
//     when everything that people made is deleted.
//   - wrongly failed: requests that were refused and should have been accepted, or the
//     other way round. While the API server or its etcd is down, it refuses requests
//     itself; people try those again, as with kubectl, and they do not count. What a
//     webhook refuses, or is refused because a webhook does not answer, counts always.
//   - failed closed: requests that failurePolicy Fail refused while no webhook could be
//     reached, which is right: Clusters with a class of another namespace, and changes
//     of the FleetAddonConfig.
//
// The harness plays what a cluster has around the processes: a kubelet that starts what
// has ended, at once and then at growing distances; a Service that connects to replicas
// which are ready; a controller-manager that starts again after the API server was away,
// as one that has lost its lease does.
//
// A run is drawn from its seed, which is printed; the machine's timing is not.
// `-faults=NAME -runs=1 -seed=SEED` draws it again.
package main
