package release

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/helm/worker"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/settings"
)

// Sources reads the objects that Clusters refer to.
type Sources interface {
	Objects(ctx context.Context, cluster *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error)
	Digest(ctx context.Context, cluster *clusterv1.Cluster, digest io.Writer) error
}

var _ Sources = (*references.Reader)(nil)

// Renderer renders the values template of a HelmChartProxy in this namespace, over data that it gets when it has room for them.
type Renderer interface {
	Render(ctx context.Context, namespace, template string, data func() (map[string]any, error)) ([]byte, error)
}

// errNotYet says that other releases come first. All reconciles cannot wait for a worker: slow templates would block others,
// such as uninstallations.
var errNotYet = errors.New("the values will be rendered when a worker is free")

// written describes the last written values of a release: their sources, and the object that holds them.
type written struct {
	from     uint64
	digest   string
	revision int
	// object is the digest of the object, revision is in its keys, and bundle is its owner.
	object string
	bundle types.UID
	// failed is the error of the rendering, and at is the time of the rendering or write.
	failed error
	at     time.Time
	// isHeld says that the values were not written: the release waits for its turn in the rollout.
	isHeld bool
	// waits is since when values from other sources wait to be rendered; zero if none do.
	waits time.Time
}

// isOf reports whether the values that the record names were written for the current Bundle.
func (w written) isOf(s *scope) bool {
	isWaiting := s.record.Rollout != nil && s.record.Rollout.Pending != "" // The record was not written, or the cache does not have it yet.
	return w.failed == nil && !w.isHeld && !isWaiting && w.digest == s.record.Digest && w.revision == s.record.Revision && w.bundle == s.bundle.UID && s.record.Bundle == s.bundle.UID &&
		s.record.Version == s.version() // The settings may hide the version from the sources.
}

// checkInterval is how often a release repeats, without an event, the write of a Secret, which a user may have
// deleted, and the rendering of a failed template, which may have been slow by chance.
const checkInterval = plan.LastDelay

// last returns the last rendering and write of a release: most events change neither.
func (r *Reconciler) last(s *scope) written {
	its, _ := r.rendered.Load(client.ObjectKeyFromObject(s.release))
	last, _ := its.(written)
	return last
}

// writeValues writes the values of the release, and records their location. It writes changed values to the
// object that the agent does not read: the agent copies an object as soon as it changes, regardless of the
// limits of a rollout, and tries such a change only once (seen on Fleet 0.16).
func (r *Reconciler) writeValues(ctx context.Context, s *scope) error {
	if s.bundle == nil || s.isRetained() {
		return nil // The Bundle owns the values; its creation triggers the next reconcile.
	}
	s.joinRollout(r.Now())
	if !plan.HasValues(s.proxy) {
		if s.record.Digest != "" { // The release had values before.
			s.record.Digest, s.record.Version, s.record.Keys, s.record.Secret, s.record.Stale = "", "", nil, false, s.record.Stale || s.record.Secret
		}
		return nil
	}
	from := s.digestOfSources(ctx, r.Sources)
	last := r.last(s)
	if from == 0 || last.from != from {
		last = written{}
	}
	if last.isHeld && r.isHeld(ctx, s, last.digest) {
		return nil
	}
	if r.isCurrent(ctx, s, last) {
		return nil
	}
	layers, err := r.render(ctx, s)
	if err != nil {
		if from != 0 && (errors.As(err, new(worker.Problem)) || errors.As(err, new(worker.LimitError))) {
			r.rendered.Store(client.ObjectKeyFromObject(s.release), written{from: from, failed: err, at: r.Now()})
			s.retryAfter(checkInterval)
		}
		return nil
	}
	digest, err := r.Digest(ctx, []any{layers, s.inputs.Secret})
	if err != nil {
		return err
	}
	return r.putOrHold(ctx, s, last, layers, digest, from)
}

// settingsOf returns the settings for the values of a HelmChartProxy; nil if they are unknown, and values could have what they
// exclude.
func settingsOf(ctx context.Context, from *settings.Reader, of *addonsv1.HelmChartProxy) (*settings.InForce, error) {
	current, err := from.Current(ctx)
	if err == nil && current.IsUnknown() && plan.SetsValues(of) {
		return nil, nil
	}
	return current, err
}

// putOrHold writes rendered values, unless the release has to wait for its turn in a rollout.
func (r *Reconciler) putOrHold(ctx context.Context, s *scope, last written, layers []plan.Layer, digest string, from uint64) error {
	if last.isHeld { // The release has its turn for the values from these sources; a template with random functions has rendered others now.
		return r.put(ctx, s, s.next(layers, digest), layers, from)
	}
	if last.isOf(s) && s.hasContent() && digest != last.digest {
		// The template renders something else each time. Without a change of its sources there is no upgrade.
		last.at = r.Now()
		r.rendered.Store(client.ObjectKeyFromObject(s.release), last)
		s.retryAfter(checkInterval)
		return nil
	}
	if r.isHeld(ctx, s, digest) {
		r.rendered.Store(client.ObjectKeyFromObject(s.release), written{from: from, digest: digest, at: r.Now(), isHeld: true})
		return nil
	}
	return r.put(ctx, s, s.next(layers, digest), layers, from)
}

// put writes the object with values, and notes in the record where they are.
func (r *Reconciler) put(ctx context.Context, s *scope, record plan.Record, layers []plan.Layer, from uint64) error {
	object := objectOf(s, record, layers)
	if err := r.PutValues(ctx, object); err != nil {
		if errors.As(err, new(*store.TakenError)) || kube.IsRefused(err) { // Others of the Bundle must not wait for it.
			s.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err.Error())
			s.retryAfter(inputs.Patience)
			return nil
		}
		return err
	}
	record.Bundle = s.bundle.UID
	if s.isReplaced(record) {
		record = record.On(s.fleet)
	}
	s.record = record
	s.takeOver(r.Now())
	r.rendered.Store(client.ObjectKeyFromObject(s.release), written{
		from: from, digest: record.Digest, revision: record.Revision, object: store.ObjectDigest(object), bundle: s.bundle.UID, at: r.Now(),
	})
	if record.Secret {
		s.retryAfter(checkInterval)
	}
	return nil
}

// isCurrent reports whether the last result for the same sources is still valid.
func (r *Reconciler) isCurrent(ctx context.Context, s *scope, last written) bool {
	if last.failed != nil || s.record.Secret {
		age, patience := r.Now().Sub(last.at), checkInterval
		if last.failed == nil {
			patience = store.TrustInterval // An event may come from an earlier state of etcd.
		}
		if age >= patience {
			return false
		}
		s.retryAfter(checkInterval - age)
	}
	if last.failed != nil {
		s.fail(addonsv1.ValueParsingFailedReason, last.failed.Error())
		return true
	}
	return last.isOf(s) && s.hasContent() && r.IsIntact(ctx, s.key(s.record), s.record.Secret, last.object)
}

// isRetained reports whether the release keeps its current values.
func (s *scope) isRetained() bool {
	return s.inputs.Incomplete || s.trouble != (plan.Trouble{}) || s.record.FleetCluster == "" || s.isInstalledOnce() || proxy.IsOutdated(s.proxy, s.release) || capiannotations.IsPaused(s.cluster, s.cluster)
}

func (s *scope) key(record plan.Record) plan.Key {
	namespace := s.release.Spec.ClusterRef.Namespace
	return plan.Key{Namespace: namespace, Name: plan.ValuesName(client.ObjectKeyFromObject(s.proxy), namespace, record.FleetCluster, record.Revision)}
}

// version returns the version for which values are rendered now; empty if the template cannot read it.
func (s *scope) version() string {
	if !s.inputs.Template.ReadsVersion {
		return ""
	}
	return s.cluster.Spec.Topology.Version
}

// next returns the record of the values, changed or not.
func (s *scope) next(layers []plan.Layer, digest string) plan.Record {
	record := s.record
	record.Version = s.version()
	record.Secret, record.Keys = s.inputs.Secret, nil
	for _, layer := range layers {
		record.Keys = append(record.Keys, layer.Key)
	}
	if digest == record.Digest && s.hasContent() {
		return record
	}
	if record.Digest != "" {
		record.Revision++
		record.Stale = record.Stale || s.record.Secret
	}
	if record.Digest = digest; plan.Reads(s.deployment, s.key(record).Name) {
		record.Revision++ // No agent reads the previous values yet: the rollout has not reached them.
	}
	return record
}

// digestOfSources returns a digest of all sources of the values; 0 if one of them is unknown.
func (s *scope) digestOfSources(ctx context.Context, sources Sources) uint64 {
	digest := fnv.New64a()
	fmt.Fprintf(digest, "%s %s %s ", s.inputs.Values, s.cluster.UID, s.settings.Effect)
	if !s.inputs.Template.IsStatic && (plan.WriteRead(s.cluster, s.settings.Cluster.Exclude, digest) != nil || sources.Digest(ctx, s.cluster, digest) != nil) {
		return 0
	}
	return digest.Sum64()
}

// render returns the values. After an error, the release keeps its last values.
func (r *Reconciler) render(ctx context.Context, s *scope) ([]plan.Layer, error) {
	layers := slices.Clone(s.inputs.Layers)
	if s.proxy.Spec.ValuesTemplate == "" {
		return plan.OrNoValues(layers), nil
	}
	rendered, err := r.renderTemplate(ctx, s)
	switch {
	case errors.Is(err, errNotYet):
		s.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, err.Error())
		s.isUnfinished, s.isWaiting = true, true
	case references.Patience(err) > 0:
		s.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, "the objects that the Cluster refers to are being listed")
		s.isUnfinished, s.isWaiting = true, true
		s.retryAfter(references.Patience(err))
	case err != nil:
		s.fail(addonsv1.ValueParsingFailedReason, err.Error())
	}
	return append(layers, plan.Layer{Key: plan.ValuesKey, Data: rendered}), err
}

func (r *Reconciler) renderTemplate(ctx context.Context, s *scope) ([]byte, error) {
	if !s.turn.Take() {
		return nil, errNotYet
	}
	return r.Renderer.Render(ctx, s.proxy.Namespace, s.proxy.Spec.ValuesTemplate, func() (map[string]any, error) {
		if s.inputs.Template.IsStatic {
			return nil, nil //nolint:nilnil // It reads none.
		}
		controlPlane, infrastructure, err := r.Sources.Objects(ctx, s.cluster)
		if err != nil {
			return nil, err
		}
		return plan.Data(s.cluster, controlPlane, infrastructure, s.settings.Cluster.Exclude)
	})
}

// objectOf returns the object with values, which the Bundle owns.
func objectOf(s *scope, record plan.Record, layers []plan.Layer) client.Object {
	object := plan.ValuesObject(client.ObjectKeyFromObject(s.proxy), s.release.Spec.ClusterRef.Namespace, record, layers)
	object.GetAnnotations()[plan.ReleaseAnnotation] = client.ObjectKeyFromObject(s.release).String()
	object.SetOwnerReferences(plan.OwnedBy(s.bundle))
	return object
}

// removeStale removes old values once the agent reads the new ones.
func (r *Reconciler) removeStale(ctx context.Context, s *scope, observed plan.Release) error {
	// With trouble, or while the Cluster is paused, the record may be older than the values that were written last.
	if !observed.Deployed || s.trouble != (plan.Trouble{}) || s.inputs.Incomplete || capiannotations.IsPaused(s.cluster, s.cluster) {
		return nil
	}
	isRead := false
	for revision := range 2 {
		key := s.key(plan.Record{FleetCluster: s.record.FleetCluster, Revision: revision})
		isCurrent := s.record.Digest != "" && revision == s.record.Revision%2
		switch {
		case isCurrent && s.record.Stale && !s.record.Secret: // Earlier values of this name were in a Secret.
			if err := r.RemoveSecret(ctx, client.ObjectKeyFromObject(s.proxy), key, plan.ValuesSecretType); err != nil {
				return err
			}
			continue
		case isCurrent:
			continue
		case plan.Reads(s.deployment, key.Name):
			isRead = true
			continue
		}
		if err := r.RemoveValues(ctx, client.ObjectKeyFromObject(s.proxy), key, s.record.Stale); err != nil {
			return err
		}
	}
	s.record.Stale = s.record.Stale && isRead
	return nil
}
