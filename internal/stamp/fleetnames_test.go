package stamp

import (
	"strings"
	"testing"
)

// The names are those that Fleet gives (github.com/rancher/fleet/internal/names, which
// nobody else may import).
func TestNamesThatFleetGives(t *testing.T) {
	for got, want := range map[string]string{
		AgentBundle("prod"):                                                  "fleet-agent-prod",
		AgentBundle(strings.Repeat("a", 51)):                                 "fleet-agent-" + strings.Repeat("a", 51),
		AgentBundle(strings.Repeat("a", 52)):                                 "fleet-agent-" + strings.Repeat("a", 45) + "-72951",
		AgentBundle(strings.Repeat("a", 44) + "-" + strings.Repeat("b", 18)): "fleet-agent-" + strings.Repeat("a", 44) + "-d1a82f",
		FleetNamespace("nat-team", "edge"):                                   "cluster-nat-team-edge-f8404753eff4", // as a real Fleet did
		FleetNamespace(strings.Repeat("n", 60), strings.Repeat("c", 63)):     "cluster-" + strings.Repeat("n", 49) + "-0723d",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
