// Package registrar registers Clusters in Fleet ahead of their agents, for clusters that
// the management cluster cannot reach, and hands out for each one manifest with that
// cluster's own credential: in a Secret beside the Cluster. It is a program of its own
// because it writes Secrets.
//
// What to do next for a Cluster is decided in decide.go, what the manifest holds in
// manifest.go; both are pure. Nothing on a Secret or a ClusterRegistration is believed
// that somebody with rights in one namespace could have put there about another one.
package registrar
