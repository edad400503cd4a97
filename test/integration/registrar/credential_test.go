package registrar

import (
	"crypto/sha256"
	"encoding/hex"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
)

// credentialName is where Fleet leaves the credential of a registration, written once more.
func credentialName(registration fleetv1.ClusterRegistration) string {
	sum := sha256.Sum256([]byte(registration.Spec.ClientID + registration.Spec.ClientRandom))
	return ("c-" + hex.EncodeToString(sum[:]))[:63]
}
