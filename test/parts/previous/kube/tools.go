//go:build tools

// Package parts pins etcd and the Kubernetes programs that the local stack builds. Other modules have the versions
// that the controllers' module has (but for CEL, which decides what the API server accepts): so Go compiles once what
// both use.
package parts

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
