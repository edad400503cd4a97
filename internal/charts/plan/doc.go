// Package plan says what Fleet is to do for a HelmChartProxy: which Bundles, with which
// targets, which objects with values beside them, and what is told of it. It is pure: it
// takes objects and the files of a chart and returns objects. It knows neither an API
// server nor Helm's library, so that `syncer render` and the webhook decide as the program
// does that fetches charts.
//
// A HelmChartProxy becomes Bundles in each namespace with selected Clusters, and each
// Cluster one target of one of them, by the name that it is pinned to in Fleet. Values that
// differ from Cluster to Cluster lie in a ConfigMap for each, which Fleet carries along:
// a change of one Cluster writes one object, and concerns no other.
package plan
