module github.com/muster-fleet/muster/test/providers

go 1.26.0

require (
	github.com/k3s-io/cluster-api-k3s v0.3.0
	github.com/rancher/cluster-api-provider-rke2 v0.14.0
)
