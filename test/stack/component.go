package stack

import (
	"context"
	"path/filepath"
)

// StartCharts starts the component for HelmChartProxies, which may read Secrets in all namespaces.
func (s *Stack) StartCharts(ctx context.Context) error {
	if err := s.StartComponent(ctx, "helm"); err != nil {
		return err
	}
	return s.StartComponent(ctx, "helm-read-secrets")
}

// StartComponent applies an optional part of Muster, a kustomization under manifests/, with
// kubectl, as a user would, runs the Deployments in it, and leads its webhooks to Muster's.
func (s *Stack) StartComponent(ctx context.Context, name string) error {
	manifests := filepath.Join(s.tools.Root, "manifests", name)
	rendered, err := s.Kubectl(ctx, "kustomize", manifests)
	if err != nil {
		return err
	}
	objects, err := decode([]byte(rendered))
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", manifests); err != nil {
		return err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "Deployment":
			if _, unknown := s.process(object.GetName()); unknown == nil { // An earlier test stopped it.
				err = s.Restart(ctx, object.GetName())
			} else {
				_, err = s.startReplica(ctx, object.GetNamespace(), object.GetName(), 0)
			}
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			err = s.routeConfiguration(ctx, object) // Elsewhere may be another stack's webhook.
		}
		if err != nil {
			return err
		}
	}
	s.say("applied %d objects of manifests/%s", len(objects), name)
	return nil
}

// DownstreamAuditLog is AuditLog for the downstream.
func (s *Stack) DownstreamAuditLog(filter AuditFilter) ([]AuditEvent, error) {
	return s.auditLog(downstreamPrefix, filter)
}
