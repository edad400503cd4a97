package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/authority"
	"github.com/muster-fleet/muster/internal/defects"
	"github.com/muster-fleet/muster/internal/helm/repository"
)

// observe reads the cluster's state past all caches: it reads seldom, and acts on the result at once.
func (r *reconciler) observe(ctx context.Context, config *addonsv1.FleetAddonConfig) (*state, error) {
	s := newState(config)
	s.attempts, s.now, s.kubernetes = r.attempts, r.now(), r.kubernetes
	if s.isNothing() {
		return s, nil
	}
	var err error
	fleet := &appsv1.Deployment{}
	if s.rancher, err = read(ctx, r.live, types.NamespacedName{Namespace: "cattle-system", Name: "rancher"}, &appsv1.Deployment{}); err != nil {
		return nil, err
	}
	if _, err = read(ctx, r.live, types.NamespacedName{Namespace: FleetNamespace, Name: settingsName}, fleet); err != nil {
		return nil, err
	}
	s.running = defects.Running(fleet)
	if s.install != nil && r.looked.of == s.install.lookup() && s.now.Before(r.looked.due) {
		s.offered = r.looked.offered
	}
	if !s.rancher {
		if err := r.observeFleet(ctx, s); err != nil {
			return nil, err
		}
		if err := r.observeServer(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, r.observeGates(ctx, s)
}

// read reads an object, and reports whether it exists.
func read(ctx context.Context, from client.Reader, key types.NamespacedName, object client.Object) (bool, error) {
	err := from.Get(ctx, key, object)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading %s %s: %w", reflect.TypeOf(object).Elem().Name(), strings.TrimPrefix(key.String(), "/"), err)
	}
	return err == nil, nil
}

// observeFleet reads releases and settings, if Fleet's namespace exists.
func (r *reconciler) observeFleet(ctx context.Context, s *state) error {
	there, err := r.room.find(ctx)
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
	defer func() {
		if err == nil {
			r.last.begin(s.now) // An address that is set later was not in effect before this installer started.
		}
	}()
	switch in := s.Server; {
	case in == nil && (s.install == nil || s.fleet != nil && s.fleet.Values["apiServerURL"] != nil):
		return nil
	case in == nil:
		s.server, _, err = r.infer(ctx, s)
		return err
	case ptr.Deref(in.InferLocal, false):
		s.server, s.serverProblem, err = r.infer(ctx, s)
		return err
	default:
		custom := ptr.Deref(in.Custom, in.CustomServer)
		s.server = &server{url: ptr.Deref(custom.APIServerURL, ""), from: "spec.config.server"}
		if ca := custom.APIServerCAConfigRef; ca != nil {
			s.server.from = cmp.Or(ca.Kind, "ConfigMap") + " " + ca.Namespace + "/" + ca.Name
			if s.server.ca, s.serverProblem, err = r.authority(ctx, ca); s.serverProblem != nil {
				s.server = nil
			}
		}
		return err
	}
}

func (r *reconciler) infer(ctx context.Context, s *state) (*server, *Problem, error) {
	all := published{clusterInfo: &corev1.ConfigMap{}, slice: &discoveryv1.EndpointSlice{}}
	if _, err := read(ctx, r.live, types.NamespacedName{Namespace: "kube-public", Name: "cluster-info"}, all.clusterInfo); err != nil {
		return nil, nil, err
	}
	if _, err := read(ctx, r.live, types.NamespacedName{Namespace: "default", Name: "kubernetes"}, all.slice); err != nil {
		return nil, nil, err
	}
	var err error
	if all.rootCA, err = r.rootCA(ctx); err != nil {
		return nil, nil, err
	}
	found, problem := all.infer(s.inForce(), &r.last, s.now)
	return found, problem, nil
}

// ownAuthority reads the certificate authority with which this program itself verifies the API
// server: in a pod that of its ServiceAccount, which only the kubelet writes.
func ownAuthority(config *clientrest.Config) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		if len(config.CAData) > 0 || config.CAFile == "" {
			return string(config.CAData), nil
		}
		text, err := os.ReadFile(config.CAFile) // The file is rotated, so it is read each time.
		return string(text), err
	}
}

// publicAuthority reads the certificate authority that pods get, for a person without a ServiceAccount.
func publicAuthority(live client.Reader) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		root := &corev1.ConfigMap{}
		_, err := read(ctx, live, types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kube-root-ca.crt"}, root)
		return root.Data[authority.Key], err
	}
}

// authority reads the certificate authority that a user names.
func (r *reconciler) authority(ctx context.Context, ref *corev1.ObjectReference) (string, *Problem, error) {
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	var text string
	var problem *Problem
	var err error
	if ref.Kind == "Secret" {
		var data map[string][]byte
		data, problem, err = r.secret(ctx, key)
		text = string(data[authority.Key])
	} else {
		object := &corev1.ConfigMap{}
		problem, err = r.named(ctx, "configmaps", "ConfigMap", key, object)
		text = object.Data[authority.Key]
	}
	switch {
	case err != nil:
		return "", nil, err
	case problem != nil:
		return "", &Problem{addonsv1.CAUnusableReason, problem.Message}, nil
	}
	if problem := authority.Problem(text, r.now()); problem != "" {
		return "", &Problem{addonsv1.CAUnusableReason, fmt.Sprintf("%s %s: %s", cmp.Or(ref.Kind, "ConfigMap"), key, problem)}, nil
	}
	return text, nil, nil
}

// secret reads a Secret that a user names.
func (r *reconciler) secret(ctx context.Context, key types.NamespacedName) (map[string][]byte, *Problem, error) {
	object := &corev1.Secret{}
	problem, err := r.named(ctx, "secrets", "Secret", key, object)
	return object.Data, problem, err
}

// named reads an object that a user names. It first asks whether the installer may read it, because
// a refusal should be neither an error nor an entry in an audit log.
func (r *reconciler) named(ctx context.Context, resource, kind string, key types.NamespacedName, object client.Object) (*Problem, error) {
	allowed, err := r.may(ctx, "get", resource, key)
	if err != nil {
		return nil, err
	}
	if !allowed {
		return &Problem{Message: fmt.Sprintf("%s %s: the installer may not read it; give its ServiceAccount a Role in namespace %s with verb get on it, or move it to %s", kind, key, key.Namespace, FleetNamespace)}, nil
	}
	there, err := read(ctx, r.live, key, object)
	if err == nil && !there {
		return &Problem{Message: fmt.Sprintf("%s %s does not exist", kind, key)}, nil
	}
	return nil, err
}

// observeGates reads the ConfigMap that the user names for the feature gates.
func (r *reconciler) observeGates(ctx context.Context, s *state) error {
	at := s.gatesIn()
	if at.Name == "" {
		return nil
	}
	object := &corev1.ConfigMap{}
	problem, err := r.named(ctx, "configmaps", "ConfigMap", at, object)
	if err != nil {
		return err
	}
	if problem == nil {
		allowed, err := r.may(ctx, "patch", "configmaps", at)
		if err != nil || allowed {
			s.gatesMap = object
			return err
		}
		problem = &Problem{Message: fmt.Sprintf("ConfigMap %s: the installer may not change it; give its ServiceAccount a Role in namespace %s with verbs get and patch on it", at, at.Namespace)}
	}
	s.gatesProblem = &Problem{addonsv1.FeatureGatesUnwritableReason, problem.Message}
	return nil
}

// looked is the answer of a repository. Reading an index of many megabytes is expensive, so the answer is used for an
// interval, whatever else changes.
type looked struct {
	// of identifies the request, and due is when the next one is due.
	of  string
	due time.Time
	*offered
}

func (i *install) lookup() string { return fmt.Sprint(i.repository, " ", i.secret, " ", i.text) }

// lookUp asks the repository which versions of both charts it has.
func (r *reconciler) lookUp(ctx context.Context, s *state) error {
	offers, err := r.offers(ctx, s.install)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A look-up may take longer than firstRetry: a due time that has passed would have the next step ask again.
	r.looked = looked{s.install.lookup(), r.now().Add(r.LookupInterval), &offered{offers, unreachable(s.install, err)}}
	if err != nil {
		r.looked.due = r.now().Add(firstRetry)
	}
	return nil
}

// unreachable adds the name of the repository to an error that is not a *Problem.
func unreachable(in *install, err error) error {
	var problem *Problem
	if err == nil || errors.As(err, &problem) {
		return err
	}
	return fmt.Errorf("%s cannot be reached: %w", in.source(), err)
}

func (r *reconciler) offers(ctx context.Context, in *install) ([]*semver.Version, error) {
	repository, err := r.open(ctx, in)
	if err != nil {
		return nil, err
	}
	fleet, err := repository.Offers(ctx, FleetChart, in.exact)
	if err != nil {
		return nil, err
	}
	crds, err := repository.Offers(ctx, CRDChart, in.exact)
	if err != nil {
		return nil, err
	}
	return both(fleet, crds), nil
}

// open opens the repository with the credentials in its Secret.
func (r *reconciler) open(ctx context.Context, in *install) (Repository, error) {
	var access repository.Access
	if in.secret.Name != "" {
		data, problem, err := r.secret(ctx, in.secret)
		if err != nil {
			return nil, err
		}
		if problem != nil {
			return nil, &Problem{addonsv1.SecretUnusableReason, "spec.install.repositorySecretRef: " + problem.Message}
		}
		access.Username, access.Password, access.AccessToken, access.Authorities = string(data["username"]), string(data["password"]), string(data["token"]), data[authority.Key]
	}
	return r.repository(in.repository, access)
}
