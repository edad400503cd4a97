package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const authorityKey = "ca.crt"

// authority is a reference to the CA of Fleet's server, and the field it is in.
type authority struct {
	path *field.Path
	ref  *corev1.ObjectReference
}

func authoritiesOf(config *addonsv1.FleetAddonConfig) []authority {
	if config.Spec.Config == nil || config.Spec.Config.Server == nil {
		return nil
	}
	server, path := config.Spec.Config.Server, field.NewPath("spec", "config", "server")
	var result []authority
	if ref := server.APIServerCAConfigRef; ref != nil {
		result = append(result, authority{path.Child("apiServerCaConfigRef"), ref})
	}
	if server.Custom != nil && server.Custom.APIServerCAConfigRef != nil {
		result = append(result, authority{path.Child("custom", "apiServerCaConfigRef"), server.Custom.APIServerCAConfigRef})
	}
	return result
}

// sameAuthority reports whether both refer to the same CA in a field.
func sameAuthority(path string, old, config *addonsv1.FleetAddonConfig) bool {
	for _, before := range authoritiesOf(old) {
		for _, after := range authoritiesOf(config) {
			if before.path.String() == path && after.path.String() == path {
				return before.ref.Kind == after.ref.Kind && before.ref.Namespace == after.ref.Namespace && before.ref.Name == after.ref.Name
			}
		}
	}
	return false
}

// checkAuthorities reads the CAs that a FleetAddonConfig refers to. Unsure are warnings
// of what cannot be read. A Secret never is: nobody here may read Secrets.
func (v ConfigValidator) checkAuthorities(ctx context.Context, config *addonsv1.FleetAddonConfig) (errs field.ErrorList, unsure []string) {
	if v.Live == nil {
		return nil, nil
	}
	for _, authority := range authoritiesOf(config) {
		ref, value := authority.ref, authority.ref.Namespace+"/"+authority.ref.Name
		switch {
		case ref.Name == "" || ref.Namespace == "": // config_policy.go says so.
			continue
		case ref.Kind == "Secret":
			unsure = append(unsure, fmt.Sprintf("%s: Secret %s is not checked, as Muster may not read Secrets; see that its key %s holds certificates in PEM", authority.path, value, authorityKey))
			continue
		case ref.Kind != "" && ref.Kind != "ConfigMap":
			continue
		}
		configMap := &corev1.ConfigMap{}
		err := v.Live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, configMap)
		switch {
		case apierrors.IsNotFound(err):
			errs = append(errs, field.Invalid(authority.path, value, "no such ConfigMap; create it first, with the CA in its key "+authorityKey))
		case err != nil:
			ctrl.LoggerFrom(ctx).Error(err, "Left a CA unchecked", "configMap", value)
			unsure = append(unsure, fmt.Sprintf("%s: ConfigMap %s cannot be read now and is not checked", authority.path, value))
		default:
			if problem := authorityProblem(configMap.Data[authorityKey], time.Now()); problem != "" {
				errs = append(errs, field.Invalid(authority.path, value, problem))
			}
		}
	}
	return errs, unsure
}

// authorityProblem says what is wrong with CA certificates and what to do; empty if nothing.
func authorityProblem(text string, now time.Time) string {
	if text == "" {
		return "the ConfigMap has no key " + authorityKey + "; put the CA there, in PEM"
	}
	count := 0
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		count++
		if block.Type != "CERTIFICATE" {
			return fmt.Sprintf("%s holds a %s; put only certificates there", authorityKey, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Sprintf("certificate %d of %s cannot be parsed; replace it", count, authorityKey)
		}
		if now.After(certificate.NotAfter) {
			return fmt.Sprintf("certificate %d of %s (%s) expired on %s; replace it", count, authorityKey, certificate.Subject, certificate.NotAfter.UTC().Format(time.DateOnly))
		}
	}
	if count == 0 {
		return authorityKey + " holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----"
	}
	return ""
}

// surprises returns what a FleetAddonConfig means for the Clusters there are and its
// author may not expect.
func (v ConfigValidator) surprises(ctx context.Context, old, config *addonsv1.FleetAddonConfig) []string {
	current, err := settings.From(config)
	if err != nil {
		return nil // It is refused.
	}
	clusters, known := v.clusters(ctx)
	if !known {
		return nil
	}
	var result []string
	if selectors := selectorsOf(config); selectors != "" && current.Cluster.Enabled && !v.anySelected(ctx, current, clusters) {
		result = append(result, fmt.Sprintf("%s: none of the %d Clusters there are is selected now", selectors, len(clusters)))
	}
	if namingOf(old) != namingOf(config) {
		if count := countPinned(clusters); count > 0 {
			result = append(result, fmt.Sprintf("spec.cluster.naming: the %d Clusters that have a name in Fleet keep it; it concerns new ones only", count))
		}
	}
	return result
}

func (v ConfigValidator) deletion(ctx context.Context) []string {
	clusters, known := v.clusters(ctx)
	count := countPinned(clusters)
	if !known || count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d Clusters stay imported into Fleet, and without a FleetAddonConfig the defaults hold, which import every Cluster; to import nothing new, apply one with spec.cluster.enabled: false", count)}
}

func (v ConfigValidator) clusters(ctx context.Context) (all []object, known bool) {
	if v.Others == nil {
		return nil, false
	}
	all, known, err := v.Others.clusters(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Left a FleetAddonConfig unchecked against the Clusters")
		return nil, false
	}
	return all, known
}

// anySelected is true in doubt.
func (v ConfigValidator) anySelected(ctx context.Context, in settings.Settings, clusters []object) bool {
	namespaces := map[string]map[string]string{}
	for _, cluster := range clusters {
		labels, found := namespaces[cluster.Namespace]
		if !found && !in.Cluster.NamespaceSelector.Empty() {
			var err error
			if labels, err = namespaceLabels(ctx, v.Namespaces, cluster.Namespace); client.IgnoreNotFound(err) != nil {
				return true
			}
			namespaces[cluster.Namespace] = labels
		}
		if selected, _ := stamp.Selected(in.Cluster, cluster.Labels, labels); selected {
			return true
		}
	}
	return false
}

// selectorsOf names the selectors that select something other than everything.
func selectorsOf(config *addonsv1.FleetAddonConfig) string {
	cluster := ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{})
	selects := func(selector *metav1.LabelSelector) bool {
		return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0
	}
	one, other := selects(cluster.Selector), selects(cluster.NamespaceSelector)
	switch {
	case one && other:
		return "spec.cluster.selector and spec.cluster.namespaceSelector"
	case one:
		return "spec.cluster.selector"
	case other:
		return "spec.cluster.namespaceSelector"
	default:
		return ""
	}
}

func namingOf(config *addonsv1.FleetAddonConfig) addonsv1.NamingStrategy {
	return ptr.Deref(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).Naming, addonsv1.NamingStrategy{})
}

func countPinned(clusters []object) int {
	count := 0
	for _, cluster := range clusters {
		if stamp.PinOf(cluster.Annotations).IsComplete() {
			count++
		}
	}
	return count
}
