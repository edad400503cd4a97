package installer

import (
	"context"
	"errors"
	"fmt"

	"github.com/Masterminds/semver/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/authority"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/metrics"
)

func (r *reconciler) take(ctx context.Context, s *state, p *plan) error {
	ctrl.LoggerFrom(ctx).Info("Taking a step", "step", p.step, "version", p.version)
	switch p.step {
	case ask:
		return r.lookUp(ctx, s.install)
	case freeCRDs, freeFleet:
		return r.releases.Abandon(ctx, p.chart(), "left half done, and no Helm client works on it any more")
	case putCRDs, putFleet:
		return r.put(ctx, s, p)
	default:
		return r.write(ctx, p)
	}
}

// remember records an attempt, and lets each repetition of it wait longer than the last.
func (r *reconciler) remember(what string, a attempt) {
	if last := r.attempts[what]; last != nil && last.text == a.text {
		a.wait = min(max(2*last.wait, pollInterval), lastRetry)
	}
	a.due = r.now().Add(a.wait)
	r.attempts[what] = &a
}

// fail records that an attempt failed, unless the program is stopping.
func (r *reconciler) fail(ctx context.Context, what string, why *Problem) error {
	if ctx.Err() == nil {
		r.remember(what, attempt{wait: pollInterval, failure: why})
	}
	return ctx.Err()
}

// lookUp asks the repository which versions of both charts it has.
func (r *reconciler) lookUp(ctx context.Context, in *install) error {
	var fleet, crds []*semver.Version
	repository, err := r.open(ctx, in)
	if err == nil {
		fleet, err = repository.Offers(ctx, FleetChart, in.exact)
	}
	if err == nil {
		crds, err = repository.Offers(ctx, CRDChart, in.exact)
	}
	if err != nil {
		why := in.problem(err)
		if why.Reason == addonsv1.SecretUnusableReason { // It costs the repository nothing, and its author waits.
			delete(r.attempts, in.lookup())
		}
		return r.fail(ctx, in.lookup(), why)
	}
	r.attempts[in.lookup()] = &attempt{due: r.now().Add(r.LookupInterval), offers: both(fleet, crds)}
	return nil
}

// archive downloads the chart of a step.
func (r *reconciler) archive(ctx context.Context, s *state, p *plan) ([]byte, error) {
	repository, err := r.open(ctx, s.install)
	if err != nil {
		return nil, err
	}
	return repository.Fetch(ctx, p.chart(), p.version)
}

// open opens the repository with the credentials in its Secret.
func (r *reconciler) open(ctx context.Context, in *install) (Repository, error) {
	var access repository.Access
	if in.secret.Name != "" {
		secret := &corev1.Secret{}
		err := r.named(ctx, addonsv1.SecretUnusableReason, in.secret, secret)
		if problem := (*Problem)(nil); errors.As(err, &problem) {
			problem.Message = "spec.install.repositorySecretRef: " + problem.Message
		}
		if err != nil {
			return nil, err
		}
		data := secret.Data
		access.Username, access.Password, access.AccessToken, access.Authorities = string(data["username"]), string(data["password"]), string(data["token"]), data[authority.Key]
	}
	return r.repository(in.repository, access)
}

// problem returns the *Problem in an error, or one that names the repository.
func (i *install) problem(err error) *Problem {
	problem := &Problem{addonsv1.RepositoryUnreachableReason, fmt.Sprintf("%s cannot be reached: %v", i.source(), err)}
	errors.As(err, &problem)
	return problem
}

// NewRun returns a random mark for one change of a release (Release.MadeBy).
func NewRun() string { return rand.String(16) }

// order describes the release of a step.
func (r *reconciler) order(s *state, p *plan) Order {
	return Order{
		Name: p.chart(), Archive: p.archive, Values: p.values, MadeBy: NewRun(), KeepObjects: p.step == putCRDs, Adopt: s.adopt, Timeout: r.HelmTimeout,
	}
}

// put installs or upgrades a release. If Helm fails, put records that and returns no error; the
// installer retries later, less and less often.
func (r *reconciler) put(ctx context.Context, s *state, p *plan) error {
	if _, err := r.enter(ctx, true); err != nil {
		return err
	}
	order := r.order(s, p)
	_, _, err := r.releases.Put(ctx, order)
	metrics.HelmOperation(order.Name, err == nil)
	if err == nil {
		delete(r.attempts, p.what())
		return nil
	}
	ctrl.LoggerFrom(ctx).Error(err, "Helm failed", "release", order.Name, "version", p.version)
	return r.fail(ctx, p.what(), &Problem{Message: err.Error()})
}

// write sets one key of a ConfigMap that the installer does not own, unless the ConfigMap has
// changed since the installer read it. All its other bytes stay.
func (r *reconciler) write(ctx context.Context, p *plan) error {
	changed := p.object.DeepCopy()
	changed.Data[p.key] = p.text
	patch := client.MergeFromWithOptions(p.object, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, changed, patch, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", client.ObjectKeyFromObject(changed), err)
	}
	r.remember(string(p.step), attempt{text: p.text}) // Writing it again means that another program has reverted it.
	return nil
}

const (
	// account names the installer's ServiceAccount, and the RoleBinding in Fleet's namespace.
	account = "muster-installer"
	// namespaceRole names the installer's rights in Fleet's namespace. They are shipped as a ClusterRole,
	// because the namespace may not exist yet, and must not be uninstalled with the installer.
	namespaceRole = "muster-installer-fleet-namespace"
)

// enter reports whether Fleet's namespace exists, and if so makes sure that the installer has its
// rights there. If asked, it makes the namespace.
func (r *reconciler) enter(ctx context.Context, create bool) (bool, error) {
	namespace := &corev1.Namespace{}
	there, err := read(ctx, r.live, types.NamespacedName{Name: FleetNamespace}, namespace)
	if err == nil && !there && create {
		// This is an apply, not a create, so that the API server checks RBAC with this name.
		there, err = true, r.Apply(ctx, applycorev1.Namespace(FleetNamespace), client.FieldOwner(FieldManager), client.ForceOwnership)
	}
	switch {
	case err != nil || !there:
		return false, err
	case !namespace.DeletionTimestamp.IsZero():
		return false, fmt.Errorf("namespace %s is being deleted", FleetNamespace)
	case r.namespace == "":
		return true, nil
	}
	if has, err := r.may(ctx, "list", "secrets", types.NamespacedName{Namespace: FleetNamespace}); err != nil || has {
		return true, err
	}
	binding := applyrbacv1.RoleBinding(account, FleetNamespace).
		WithRoleRef(applyrbacv1.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(namespaceRole)).
		WithSubjects(applyrbacv1.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(r.namespace).WithName(account))
	if err := r.Apply(ctx, binding, client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return false, fmt.Errorf("binding ClusterRole %s in Namespace %s: %w", namespaceRole, FleetNamespace, err)
	}
	return false, fmt.Errorf("the API server does not apply RoleBinding %s/%s yet; it will in a moment", FleetNamespace, account)
}

// may reports whether the installer may use a verb on a named object.
func (r *reconciler) may(ctx context.Context, verb, resource string, key types.NamespacedName) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: resource, Namespace: key.Namespace, Name: key.Name}
	if err := r.Create(ctx, review, &client.CreateOptions{Raw: &metav1.CreateOptions{}}); err != nil {
		return false, fmt.Errorf("asking for rights: %w", err)
	}
	return review.Status.Allowed, nil
}
