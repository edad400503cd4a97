// Package rollouts plays staged rollouts of a HelmChartProxy, and judges each event of them.
//
// A Scene is a namespace with Clusters and a HelmChartProxy. Its people change everything that a rollout depends on;
// Fleet's own controller makes BundleDeployments; the agents are played, and may fail, stick or fall silent.
//
// A Judge follows the events of etcd: one stream, in which the changes of all kinds have their order, and which goes on
// while no API server runs. Its rules are those of docs/guides/rollouts.md; it shares no code with Muster but the hash that
// a percentage selects by:
//
//   - A Cluster takes a change over only after a moment at which the gate of its stage was open for it: the HelmChartProxy
//     asked for this change, each Cluster of the stages before had its wanted content and had been ready with it for the
//     soak time, no stage had more failing Clusters than it may, and a person had approved exactly this change, if the
//     stage needs approval.
//   - Of a stage, no more Clusters lose a working release than may be unavailable.
//   - When all is healthy and approved, the rollout completes, and each Cluster has its wanted content.
//
// What the guide exempts is exempt: Clusters that join, are paused, leave, are silent, or have lost their values.
package rollouts
