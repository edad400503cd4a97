package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/authority"
	"github.com/muster-fleet/muster/internal/defects"
)

// observe reads the cluster's state past all caches: it reads seldom, and acts on the result at once. It forgets earlier
// attempts when the FleetAddonConfig changes, because its author expects a new one, and attempts of long ago.
func (r *reconciler) observe(ctx context.Context, s *state) (err error) {
	s.attempts, s.now, s.kubernetes = r.attempts, r.now(), r.kubernetes
	asks := fmt.Sprint(s.config.UID, " ", s.config.Generation, " ", s.config.Annotations[AdoptAnnotation])
	maps.DeleteFunc(r.attempts, func(_ string, a *attempt) bool {
		return asks != r.asks && (a.failure != nil || a.text != "") || s.now.Sub(a.due) >= lastRetry
	})
	r.asks = asks
	if s.isNothing() {
		return nil
	}
	fleet := &appsv1.Deployment{}
	if s.rancher, err = read(ctx, r.live, types.NamespacedName{Namespace: "cattle-system", Name: "rancher"}, &appsv1.Deployment{}); err != nil {
		return err
	}
	if _, err = read(ctx, r.live, types.NamespacedName{Namespace: FleetNamespace, Name: settingsName}, fleet); err != nil {
		return err
	}
	s.running = defects.Running(fleet)
	if !s.rancher {
		if err = r.observeFleet(ctx, s); err != nil {
			return err
		}
		if err = r.observeServer(ctx, s); err != nil {
			return err
		}
	}
	return r.observeGates(ctx, s)
}

// read reads an object, and reports whether it exists.
func read(ctx context.Context, from client.Reader, key types.NamespacedName, object client.Object) (bool, error) {
	err := from.Get(ctx, key, object)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading %s %s: %w", kindOf(object), strings.TrimPrefix(key.String(), "/"), err)
	}
	return err == nil, nil
}

func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }

// observeFleet reads releases and settings, if Fleet's namespace exists.
func (r *reconciler) observeFleet(ctx context.Context, s *state) error {
	there, err := r.enter(ctx, false)
	if err != nil || !there {
		return err
	}
	if s.crds, err = r.releases.Find(ctx, CRDChart); err != nil {
		return err
	}
	if s.fleet, err = r.releases.Find(ctx, FleetChart); err != nil {
		return err
	}
	settings := &corev1.ConfigMap{}
	if there, err = read(ctx, r.live, types.NamespacedName{Namespace: FleetNamespace, Name: settingsName}, settings); there {
		s.settings = settings
	}
	return err
}

// observeServer determines the address at which agents reach the API server. It does so if the FleetAddonConfig
// asks for it, or if the installer installs Fleet, which otherwise has no address for agents.
func (r *reconciler) observeServer(ctx context.Context, s *state) (err error) {
	in := ptr.Deref(s.Server, addonsv1.Server{})
	custom := ptr.Deref(in.Custom, in.CustomServer)
	s.server = &server{url: ptr.Deref(custom.APIServerURL, ""), from: "spec.config.server"}
	switch ca := custom.APIServerCAConfigRef; {
	case s.Server == nil && (s.install == nil || s.fleet != nil && s.fleet.Values["apiServerURL"] != nil):
		s.server = nil
	case s.Server == nil, ptr.Deref(in.InferLocal, false):
		s.server, err = r.infer(ctx, s)
	case ca != nil:
		s.server.from = cmp.Or(ca.Kind, "ConfigMap") + " " + ca.Namespace + "/" + ca.Name
		s.server.ca, err = r.authority(ctx, ca)
	}
	if problem := (*Problem)(nil); errors.As(err, &problem) {
		s.server, err = nil, nil
		if s.Server != nil {
			s.serverProblem = problem
		}
	}
	if err == nil {
		r.last.begin(s.now) // An address that is set later was not in effect before this installer started.
	}
	return err
}

func (r *reconciler) infer(ctx context.Context, s *state) (_ *server, err error) {
	all := published{clusterInfo: &corev1.ConfigMap{}, slice: &discoveryv1.EndpointSlice{}}
	if _, err = read(ctx, r.live, types.NamespacedName{Namespace: "kube-public", Name: "cluster-info"}, all.clusterInfo); err != nil {
		return nil, err
	}
	if _, err = read(ctx, r.live, types.NamespacedName{Namespace: "default", Name: "kubernetes"}, all.slice); err != nil {
		return nil, err
	}
	if all.rootCA, err = r.rootCA(ctx); err != nil {
		return nil, err
	}
	return all.infer(s.inForce(), &r.last, s.now)
}

// authority reads the certificate authority that a user names.
func (r *reconciler) authority(ctx context.Context, ref *corev1.ObjectReference) (string, error) {
	secret, config := &corev1.Secret{}, &corev1.ConfigMap{}
	var object client.Object = config
	if ref.Kind == "Secret" {
		object = secret
	}
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if err := r.named(ctx, addonsv1.CAUnusableReason, key, object); err != nil {
		return "", err
	}
	text := config.Data[authority.Key] + string(secret.Data[authority.Key])
	if broken := authority.Problem(text, r.now()); broken != "" {
		return "", &Problem{addonsv1.CAUnusableReason, fmt.Sprintf("%s %s: %s", kindOf(object), key, broken)}
	}
	return text, nil
}

// named reads a Secret or ConfigMap that a user names. If it cannot, named returns a *Problem with the reason. It first
// asks whether the installer may read it, because a refusal should be neither an error nor an entry in an audit log.
func (r *reconciler) named(ctx context.Context, reason string, key types.NamespacedName, object client.Object) error {
	allowed, err := r.may(ctx, "get", strings.ToLower(kindOf(object))+"s", key)
	if err != nil {
		return err
	}
	if !allowed {
		return &Problem{reason, fmt.Sprintf("%s %s: the installer may not read it; give its ServiceAccount a Role in namespace %s with verb get on it, or move it to %s", kindOf(object), key, key.Namespace, FleetNamespace)}
	}
	there, err := read(ctx, r.live, key, object)
	if err == nil && !there {
		return &Problem{reason, fmt.Sprintf("%s %s does not exist", kindOf(object), key)}
	}
	return err
}

// observeGates reads the ConfigMap that the user names for the feature gates.
func (r *reconciler) observeGates(ctx context.Context, s *state) error {
	at := s.gatesIn()
	if at.Name == "" {
		return nil
	}
	s.gatesMap = &corev1.ConfigMap{}
	err := r.named(ctx, addonsv1.FeatureGatesUnwritableReason, at, s.gatesMap)
	if err == nil {
		var allowed bool
		if allowed, err = r.may(ctx, "patch", "configmaps", at); err == nil && !allowed {
			err = &Problem{addonsv1.FeatureGatesUnwritableReason, fmt.Sprintf("ConfigMap %s: the installer may not change it; give its ServiceAccount a Role in namespace %s with verbs get and patch on it", at, at.Namespace)}
		}
	}
	if errors.As(err, &s.gatesProblem) {
		return nil
	}
	return err
}
