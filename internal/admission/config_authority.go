package admission

import (
	"cmp"
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	pemauthority "github.com/muster-fleet/muster/internal/authority"
	"github.com/muster-fleet/muster/internal/stamp"
)

// authorityResources are the resources that may hold a CA, by kind.
var authorityResources = map[string]string{"ConfigMap": "configmaps", "Secret": "secrets"}

// authority is a reference to the CA of Fleet's server, or to the credentials of a repository, with the path of its
// field.
type authority struct {
	path            *field.Path
	kind            string
	namespace, name string
	// credentials means that the reference is to a repository's credentials and not to a CA. Only the installer
	// reads those.
	credentials bool
	// repository is the URL that receives the credentials. For another URL the author's permission is checked
	// again.
	repository string
}

func (a authority) String() string { return fmt.Sprintf("%s %s/%s", a.kind, a.namespace, a.name) }

// authoritiesOf returns the complete references; config_policy.go reports what is wrong with the others.
func authoritiesOf(config *addonsv1.FleetAddonConfig) []authority {
	var result []authority
	if install := config.Spec.Install; install != nil && install.RepositorySecretRef != nil && install.RepositorySecretRef.Name != "" {
		ref := install.RepositorySecretRef
		result = append(result, authority{
			path: field.NewPath("spec", "install", "repositorySecretRef"), kind: "Secret",
			namespace: cmp.Or(ref.Namespace, stamp.FleetSystem), name: ref.Name, credentials: true, repository: ptr.Deref(install.Repository, ""),
		})
	}
	if config.Spec.Config == nil || config.Spec.Config.Server == nil {
		return result
	}
	server, path := config.Spec.Config.Server, field.NewPath("spec", "config", "server")
	add := func(path *field.Path, ref *corev1.ObjectReference) {
		if ref == nil || ref.Name == "" || ref.Namespace == "" {
			return
		}
		kind := cmp.Or(ref.Kind, "ConfigMap")
		if authorityResources[kind] != "" {
			result = append(result, authority{path: path.Child("apiServerCaConfigRef"), kind: kind, namespace: ref.Namespace, name: ref.Name})
		}
	}
	add(path, server.APIServerCAConfigRef)
	if server.Custom != nil {
		add(path.Child("custom"), server.Custom.APIServerCAConfigRef)
	}
	return result
}

// isIn reports whether a FleetAddonConfig has the same reference in the same field, and for credentials the same
// repository.
func (a authority) isIn(config *addonsv1.FleetAddonConfig) bool {
	for _, other := range authoritiesOf(config) {
		if other.path.String() == a.path.String() && other.String() == a.String() && other.repository == a.repository {
			return true
		}
	}
	return false
}

// checkAuthorities checks the CAs and credentials that a FleetAddonConfig refers to. Every cluster receives the CA,
// so the author must be allowed to get it. A CA that went bad after it was named does not block other changes:
// unsure holds warnings about such CAs, and about CAs that cannot be read. An error means that no decision is
// possible.
func (v ConfigValidator) checkAuthorities(ctx context.Context, old, config *addonsv1.FleetAddonConfig) (errs field.ErrorList, unsure []string, err error) {
	for _, authority := range authoritiesOf(config) {
		isNew := !authority.isIn(old)
		if isNew {
			refusal, err := v.mayName(ctx, authority)
			if err != nil {
				return nil, nil, err
			}
			if refusal != nil {
				errs = append(errs, refusal)
				continue // The author must not learn the object's content.
			}
		}
		if authority.credentials {
			continue
		}
		problem, unread := v.readAuthority(ctx, authority)
		switch {
		case unread != "":
			unsure = append(unsure, fmt.Sprintf("%s: %s", authority.path, unread))
		case problem == "":
		case isNew:
			errs = append(errs, field.Invalid(authority.path, authority.namespace+"/"+authority.name, problem))
		default:
			unsure = append(unsure, fmt.Sprintf("%s: %s: %s", authority.path, authority, problem))
		}
	}
	return errs, unsure, nil
}

// mayName checks that the author of a FleetAddonConfig may get the referenced object, and returns the refusal if
// not.
func (v ConfigValidator) mayName(ctx context.Context, authority authority) (*field.Error, error) {
	if v.Reviewer == nil {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	resource := authorityResources[authority.kind]
	allowed, err := mayDo(ctx, v.Reviewer, req.UserInfo, authorizationv1.ResourceAttributes{
		Verb: "get", Version: "v1", Resource: resource, Namespace: authority.namespace, Name: authority.name,
	})
	if err != nil || allowed {
		return nil, err
	}
	use := "deliver to every cluster"
	if authority.credentials {
		use = "send to the repository"
	}
	return field.Forbidden(authority.path, fmt.Sprintf("user %q may not get %s %q in namespace %q, which this would %s; name one that you may read, or ask for a Role there with verb get on resource %[2]s",
		req.UserInfo.Username, resource, authority.name, authority.namespace, use)), nil
}

// readAuthority reads a CA. It returns what is wrong with the CA and how to fix it, or why it could not read it:
// Muster may read a CA only if a Role grants that.
func (v ConfigValidator) readAuthority(ctx context.Context, authority authority) (problem, unread string) {
	if v.Live == nil {
		return "", ""
	}
	key, text := client.ObjectKey{Namespace: authority.namespace, Name: authority.name}, ""
	var err error
	if authority.kind == "Secret" {
		secret := &corev1.Secret{}
		err = v.Live.Get(ctx, key, secret)
		text = string(secret.Data[pemauthority.Key])
	} else {
		configMap := &corev1.ConfigMap{}
		err = v.Live.Get(ctx, key, configMap)
		text = configMap.Data[pemauthority.Key]
	}
	switch {
	case apierrors.IsForbidden(err):
		return "", fmt.Sprintf("%s is not checked, because Muster may not read it; make sure that its key %s holds certificates in PEM; the condition FleetConfigured says whether it does", authority, pemauthority.Key)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("no such %s; create it first, with the CA in its key %s", authority.kind, pemauthority.Key), ""
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Did not check a CA", "reference", authority.String())
		return "", fmt.Sprintf("%s cannot be read now, so it is not checked", authority)
	case text == "":
		return fmt.Sprintf("the %s has no key %s; put the CA there, in PEM", authority.kind, pemauthority.Key), ""
	}
	return pemauthority.Problem(text, time.Now()), ""
}
