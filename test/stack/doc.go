// Package stack runs the systems Muster stands between as host processes on
// loopback: etcd, kube-apiserver, kube-controller-manager, cert-manager, Cluster
// API with its in-memory infrastructure, Fleet, and Muster itself. No container
// runtime, no cluster and no installed tool but Go is needed.
//
// It owns processes, ports, certificates and files. It knows nothing about what
// Muster does: Muster's own processes are started from the Deployments that its
// shipped manifests created, with the arguments, environment, ServiceAccount and
// Secret mounts that those give them.
//
// Packages below know one thing each and nothing of the whole: parts builds the programs,
// process runs one, pod plays the kubelet, balancer a Service, pki the certificate
// authority, ports keeps stacks apart.
//
// The same code serves `make up`, the demo and Go tests. A stack of a test lives
// in a temporary directory on ports chosen at run time and dies with the test; the
// stack of `make up` lives in .dev, held by a supervisor process.
package stack
