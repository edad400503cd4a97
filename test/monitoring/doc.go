// Package monitoring tests what ships in manifests/monitoring: each alert on made-up
// series, with Prometheus's own parser and engine, and each query of alerts and
// dashboard for what it asks for.
//
// It knows nothing of the programs. What the queries ask for is written down in
// testdata/used.txt, which a test here keeps current, and test/integration holds
// against what the programs and the API server expose.
//
// It is a module of its own so that Prometheus's requirements do not decide ours.
package monitoring
