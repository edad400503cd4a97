// Package monitoring tests what manifests/monitoring ships: each alert on made-up series,
// with Prometheus's own parser and engine, the dashboard, and the configuration of kube-state-metrics,
// with that program's own code. Command used prints what the
// queries ask for; other tests compare that with what the programs and the API server expose.
//
// It is a module of its own so that Prometheus's requirements do not decide ours.
package monitoring
