package main

import (
	"fmt"
	"strings"

	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
)

// instructions say how to install the pushed images: what docs/install.md says, for this registry and version.
func instructions(registry string, pushed []images.Image) string {
	host, path, _ := strings.Cut(registry, "/")
	tag := pushed[0].Tag
	var kustomization, operator strings.Builder
	for _, image := range pushed {
		if !image.Program.IsDeployed() {
			continue
		}
		name := image.Program.Image()
		fmt.Fprintf(&kustomization, "  - {name: %s/%s, newName: %s, newTag: %s}\n", programs.Registry, name, image.Name(registry), tag)
		if image.Program.Default {
			fmt.Fprintf(&operator, "    %s: {deployment: {containers: [{name: manager, imageUrl: \"%s:%s\"}]}}\n", name, image.Name(registry), tag)
		}
	}
	return fmt.Sprintf(`
To install these images (docs/install.md), run or write:

kubectl; other components likewise, from manifests/helm, manifests/registrar or manifests/installer:
  kubectl kustomize manifests/default | sed 's,%[7]s/\(.*\):.*,%[5]s/\1:%[3]s,' | kubectl apply --server-side -f -
Helm:
  helm install muster charts/muster --namespace muster-system --create-namespace --set image.registry=%[1]s --set image.repository=%[2]s --set image.tag=%[3]s
kustomize, in a kustomization.yaml:
  images:
%[4]sclusterctl, in its configuration:
  images: {addon-muster: {repository: %[5]s, tag: %[3]s}}
Cluster API Operator, in the AddonProvider:
  additionalDeployments:
%[6]skind, without a registry, then one of the above with REGISTRY=%[7]s:
  tar -C dist/images -cf dist/images.tar . && kind load image-archive dist/images.tar
`, host, path, tag, kustomization.String(), registry, operator.String(), programs.Registry)
}
