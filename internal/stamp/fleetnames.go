package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// FleetNamespace returns the name of the namespace that Fleet keeps for a Fleet Cluster.
func FleetNamespace(namespace, fleetCluster string) string {
	const hashed = 100 // bytes, of what Fleet hashes
	key := namespace + "::" + fleetCluster
	return fleetName("cluster", namespace, fleetCluster, hexOf(key[:min(hashed, len(key))])[:12])
}

// AgentBundle returns the name of Fleet's own Bundle with the agent of a Fleet Cluster.
func AgentBundle(fleetCluster string) string { return fleetName("fleet-agent", fleetCluster) }

// fleetName joins and cuts names as Fleet does.
func fleetName(parts ...string) string {
	const longest = 63
	name := strings.Join(parts, "-")
	if len(name) <= longest {
		return name
	}
	digest := hexOf(name)
	if c := name[56]; 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
		return name[:57] + "-" + digest[:5]
	}
	return name[:56] + "-" + digest[:6]
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
