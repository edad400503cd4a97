// Package charts carries out HelmChartProxies with Fleet: it selects Clusters, renders the
// values of each, has charts downloaded, writes the Bundles that package plan returns, and
// tells how they fare. It is a program of its own, because it follows URLs that people name
// and reads Secrets that they name.
//
// A look reads everything from caches; what is there is compared with what is to be there,
// and only what differs is written. Nothing has a finalizer: what was made for a
// HelmChartProxy that is gone is found by its labels.
package charts
