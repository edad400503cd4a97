// Package fetch downloads charts, with Helm's library: it finds out which version a
// HelmChartProxy means, downloads and verifies that, and keeps the last ones. It owns every
// connection to a repository, and what may come over it: how much, for how long, and from
// where. It knows nothing of Clusters and Fleet but the form in which a chart lies in a Bundle.
package fetch
