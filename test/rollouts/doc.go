// Package rollouts plays staged rollouts of a HelmChartProxy, and judges each event of them.
//
// A Scene is a namespace with Clusters and a HelmChartProxy. Its people change everything that a rollout depends on;
// Fleet's own controller makes BundleDeployments; the agents are played, and may fail, stick or fall silent.
//
// A Judge follows the events of etcd: one stream, in which the changes of all kinds have their order, and which goes on
// while no API server runs. It knows docs/guides/rollouts.md and no code of Muster, but for whom a percentage selects:
//
//   - A Cluster takes a change over only after a moment at which that change was wanted, each Cluster of the stages
//     before had what was wanted of it and had been ready with that for the soak time, no stage had more failing Clusters
//     than it may, and, for a stage with approval, a person had approved exactly that change.
//   - Of a stage, no more Clusters lose a working release than may be unavailable.
//   - When all is healthy and approved, the rollout completes, and each Cluster has what is wanted.
//
// What the guide exempts is exempt: Clusters that join, are paused, leave, are silent, or have lost their values.
package rollouts
