package installer

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// server is where the agents of clusters find the management cluster.
type server struct {
	url string
	// ca is in PEM.
	ca string
	// from says where it was found.
	from string
}

// published is what a cluster itself publishes of where its API server is.
type published struct {
	// clusterInfo is kube-public/cluster-info, which kubeadm and others make; nil without it.
	clusterInfo *corev1.ConfigMap
	// slices are those of the Service kubernetes.
	slices []discoveryv1.EndpointSlice
	// rootCA is the certificate authority that every ServiceAccount is given, in PEM.
	rootCA string
}

// infer finds the API server in what the cluster publishes.
func (p *published) infer() (*server, *Problem) {
	if p.clusterInfo != nil {
		if found := fromClusterInfo(p.clusterInfo); found != nil {
			return found, nil
		}
	}
	address, port := endpoint(p.slices)
	if address == "" {
		return nil, &Problem{ReasonServerUnknown, "the cluster publishes no address of its API server: there is neither a usable ConfigMap kube-public/cluster-info nor an EndpointSlice of the Service default/kubernetes with a port named https or 443; set spec.config.server.custom.apiServerUrl"}
	}
	if p.rootCA == "" {
		return nil, &Problem{ReasonServerUnknown, "ConfigMap default/kube-root-ca.crt has no key ca.crt; set spec.config.server.custom"}
	}
	return &server{
		url:  "https://" + net.JoinHostPort(address, strconv.Itoa(int(port))),
		ca:   p.rootCA,
		from: "the EndpointSlices of Service default/kubernetes, CA from ConfigMap default/kube-root-ca.crt",
	}, nil
}

// fromClusterInfo reads kubeadm's ConfigMap: a kubeconfig without a user.
func fromClusterInfo(object *corev1.ConfigMap) *server {
	config, err := clientcmd.Load([]byte(object.Data["kubeconfig"]))
	if err != nil {
		return nil
	}
	for _, cluster := range config.Clusters {
		if strings.HasPrefix(cluster.Server, "https://") && len(cluster.CertificateAuthorityData) > 0 {
			return &server{url: cluster.Server, ca: string(cluster.CertificateAuthorityData), from: "ConfigMap kube-public/cluster-info"}
		}
	}
	return nil
}

// endpoint returns one address of the API server, the same one whenever there are the same.
func endpoint(all []discoveryv1.EndpointSlice) (address string, port int32) {
	type candidate struct {
		address string
		port    int32
		family  discoveryv1.AddressType
	}
	var found []candidate
	for _, slice := range all {
		port, known := httpsPort(slice.Ports)
		if !known || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if !ptr.Deref(endpoint.Conditions.Ready, true) {
				continue
			}
			for _, address := range endpoint.Addresses {
				found = append(found, candidate{address, port, slice.AddressType})
			}
		}
	}
	if len(found) == 0 {
		return "", 0
	}
	// IPv4 comes before IPv6, as most agents reach it; within one, order is all that is asked.
	best := slices.MinFunc(found, func(a, b candidate) int {
		if a.family != b.family {
			return strings.Compare(string(a.family), string(b.family))
		}
		return strings.Compare(fmt.Sprint(a.address, a.port), fmt.Sprint(b.address, b.port))
	})
	return best.address, best.port
}

// httpsPort is the port named https, or 443, or the only one that there is.
func httpsPort(ports []discoveryv1.EndpointPort) (int32, bool) {
	for _, port := range ports {
		if ptr.Deref(port.Name, "") == "https" && port.Port != nil {
			return *port.Port, true
		}
	}
	for _, port := range ports {
		if ptr.Deref(port.Port, 0) == 443 {
			return 443, true
		}
	}
	if len(ports) == 1 && ports[0].Port != nil {
		return *ports[0].Port, true
	}
	return 0, false
}
