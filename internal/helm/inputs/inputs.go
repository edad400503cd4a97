// Package inputs reads the inputs that all releases of a HelmChartProxy share: the chart, the values template,
// and the values and credentials in ConfigMaps and Secrets. It holds everything that the program keeps in
// memory about a HelmChartProxy. Most changes of inputs trigger no event, so it reads them again at an
// interval.
package inputs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/templates"
	"github.com/muster-fleet/muster/internal/helm/values"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
)

const (
	// PollInterval is how often the Reader reads Secrets and ConfigMaps again, and retries repositories that
	// failed.
	PollInterval = plan.PollInterval
	// Patience is how long conditions stay as they were while it is not known whether they hold: repositories, API servers and
	// workers take a moment, and say nothing before they answer.
	Patience = kinds.Patience
	// readPatience limits the time to read all inputs once.
	readPatience = 3 * time.Minute
	// filesPatience is how long the reconcile of a Bundle waits for a download, which continues without it.
	// Meanwhile, other Bundles wait.
	filesPatience = 100 * time.Millisecond
	// readersRole is the ClusterRole that an administrator binds in namespaces whose Secrets the program may
	// read.
	readersRole = "muster-helm-read-secrets"
)

// Inputs are the inputs of a HelmChartProxy's releases. Callers share them, and must not change them.
type Inputs struct {
	// Trouble is the problem with the inputs. If it makes them Incomplete, everything that is deployed stays;
	// otherwise, the releases use the last chart that the Reader found.
	Trouble    plan.Trouble
	Incomplete bool
	// Notice is a message for the author.
	Notice   string
	Selector *plan.Selector
	Template templates.Template
	// Layers are the values from ConfigMaps and Secrets, in the order in which Helm merges them.
	Layers []plan.Layer
	// Secret says that a layer comes from a Secret.
	Secret bool
	Chart  plan.Chart
	// Credentials are the data of the Secret with which agents reach the repository; nil for none. CredentialsDigest is
	// a keyed digest of them, because it becomes part of another digest, in a label.
	Credentials       map[string][]byte
	CredentialsDigest string
	// Values is a digest of the inputs that affect the values, and Digest of all inputs.
	Values, Digest string

	generation int64
	lacksChart bool
	request    repository.Request
	// since is when the inputs were read first with this Digest.
	read, since time.Time
	again       time.Duration
}

// Reader reads inputs.
type Reader struct {
	// Live reads past the cache: the program may not list Secrets.
	Live client.Reader
	// Cached reads Bundles.
	Cached client.Reader
	Charts *repository.Client
	// Check returns an error unless Helm can read the values of a HelmChartProxy in this namespace.
	Check func(ctx context.Context, namespace string, values []byte) error
	// Digest returns a keyed digest; only the program has the key.
	Digest func(ctx context.Context, of any) (string, error)
	// Wake enqueues a HelmChartProxy, and with new inputs its HelmReleaseProxies and Bundles, too.
	Wake func(proxy plan.Key, isNews bool)
	// Namespace is the program's own.
	Namespace string
	Now       func() time.Time

	mu  sync.Mutex
	all map[plan.Key]*entry
	// slots are for the HelmChartProxies that are being read.
	slots *fair.Shares
	// seen maps the plan.Key of each release to its report.
	seen sync.Map
}

// report says which inputs a release has taken over, by their digest, and in which version of its HelmReleaseProxy.
type report struct {
	digest  string
	release types.UID
	version string
}

// entry is the state of one HelmChartProxy.
type entry struct {
	proxy types.UID
	// inputs are the last ones; nil before the first read.
	inputs *Inputs
	// stop ends the wait for a slot, which holds the HelmChartProxy in memory; nil while nothing is being read.
	stop context.CancelFunc
	// generation is that of the HelmChartProxy, and begun is when the Reader was first asked for its inputs.
	generation int64
	begun      time.Time
	// isResumed says that the status was of that generation then, and that the inputs have not changed since.
	isResumed bool
}

// seenPatience bounds how long anything waits for releases to take new inputs over.
const seenPatience = 5 * time.Minute

// perNamespace limits how many HelmChartProxies of a namespace the Reader reads at once, so that a slow
// repository delays no other namespace.
const perNamespace = 2

// ErrReading says that the Reader is reading the inputs, and calls Wake afterwards.
var ErrReading = errors.New("the chart and the values are being read")

// Get returns the inputs of a HelmChartProxy, and the time until the Reader reads them again; zero for never.
// It never waits: it returns ErrReading during the first read and after a change, and the last inputs during
// every other read.
func (r *Reader) Get(proxy *addonsv1.HelmChartProxy) (in *Inputs, again time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all, r.slots = map[plan.Key]*entry{}, fair.New(math.MaxInt64, perNamespace)
	}
	key := client.ObjectKeyFromObject(proxy)
	its := r.all[key]
	if its == nil || its.proxy != proxy.UID {
		r.forget(key)
		its = &entry{proxy: proxy.UID}
		r.all[key] = its
	}
	if its.begun.IsZero() || its.generation != proxy.Generation {
		its.generation, its.begun, its.isResumed = proxy.Generation, r.Now(), proxy.Status.ObservedGeneration == proxy.Generation
	}
	if its.inputs == nil || its.inputs.generation != proxy.Generation {
		err = ErrReading
	} else if in = its.inputs; in.again == 0 {
		return in, 0, nil
	} else if left := in.read.Add(in.again).Sub(r.Now()); left > 0 {
		return in, left, nil
	}
	if its.stop == nil {
		var waiting context.Context
		waiting, its.stop = context.WithCancel(context.Background())
		go r.refresh(waiting, proxy.DeepCopy(), its)
	}
	return in, PollInterval, err
}

// refresh reads the inputs of a HelmChartProxy into its entry, and then wakes it. Waiting ends if the HelmChartProxy goes before
// its turn.
func (r *Reader) refresh(waiting context.Context, proxy *addonsv1.HelmChartProxy, its *entry) {
	if r.slots.Wait(waiting, proxy.Namespace) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readPatience)
	in := r.read(ctx, proxy)
	cancel()
	r.slots.Release(proxy.Namespace, 1)
	in.read, in.generation = r.Now(), proxy.Generation
	in.Digest = plan.Digest(fmt.Appendf(nil, "%s %d %s %v %v %v %s", proxy.UID, proxy.Generation, in.Values, in.Trouble, in.Notice, in.Chart, in.CredentialsDigest))
	r.mu.Lock()
	isNews := true
	if r.all[client.ObjectKeyFromObject(proxy)] == its { // Otherwise, it was forgotten, and another refresh may have begun.
		if in.since = in.read; its.inputs != nil && its.inputs.Digest == in.Digest {
			in.since, isNews = its.inputs.since, false
		}
		its.isResumed = its.isResumed && (its.inputs == nil || !isNews)
		its.stop, its.inputs = nil, in
	}
	r.mu.Unlock()
	r.Wake(client.ObjectKeyFromObject(proxy), isNews)
}

// Begun returns when the Reader was first asked for the inputs of a HelmChartProxy's generation, and whether its status
// was of that generation already and the inputs have not changed since, as after a restart.
func (r *Reader) Begun(proxy *addonsv1.HelmChartProxy) (begun time.Time, isResumed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	its := r.all[client.ObjectKeyFromObject(proxy)]
	if its == nil || its.generation != proxy.Generation {
		return r.Now(), false
	}
	return its.begun, its.isResumed
}

// Saw notes that the record and the status of a release, as it was read, are those for the inputs.
func (r *Reader) Saw(release *addonsv1.HelmReleaseProxy, in *Inputs) {
	if !r.HasReported(release, in) {
		r.seen.Store(client.ObjectKeyFromObject(release), report{digest: in.Digest, release: release.UID, version: release.ResourceVersion})
	}
}

// HasSeen reports whether a release, as it was read, had taken the inputs over, or had seenPatience to do so.
func (r *Reader) HasSeen(release *addonsv1.HelmReleaseProxy, in *Inputs) bool {
	return r.HasReported(release, in) || r.Now().Sub(in.since) > seenPatience
}

// HasReported reports whether a release, as it was read, had taken the inputs over. One that was read earlier lacks the
// change that it has reported since, and its caller would take it for done.
func (r *Reader) HasReported(release *addonsv1.HelmReleaseProxy, in *Inputs) bool {
	last, _ := r.seen.Load(client.ObjectKeyFromObject(release))
	its, _ := last.(report)
	return its.digest == in.Digest && its.release == release.UID && !kube.IsOlder(release, its.version)
}

// ForgetRelease drops the state of a release.
func (r *Reader) ForgetRelease(release plan.Key) { r.seen.Delete(release) }

// Patience returns how much longer a release may wait, after new inputs, until its HelmChartProxy has written its spec; zero if no
// longer.
func (in *Inputs) Patience(now time.Time) time.Duration {
	return max(0, in.since.Add(Patience).Sub(now))
}

// WithoutChart returns how many HelmChartProxies lack their chart.
func (r *Reader) WithoutChart() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for _, its := range r.all {
		if its.inputs != nil && its.inputs.lacksChart {
			count++
		}
	}
	return count
}

// Forget drops the state of a HelmChartProxy.
func (r *Reader) Forget(proxy plan.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(proxy)
}

func (r *Reader) forget(proxy plan.Key) {
	if its := r.all[proxy]; its != nil && its.stop != nil {
		its.stop()
	}
	delete(r.all, proxy)
}

// read reads the inputs. A panic would end the program, so it becomes their trouble.
func (r *Reader) read(ctx context.Context, proxy *addonsv1.HelmChartProxy) (in *Inputs) {
	in = &Inputs{}
	fail := func(reason string, err error) *Inputs {
		in.Incomplete, in.Trouble = true, plan.Trouble{Reason: reason, Message: err.Error()}
		return in
	}
	defer func() {
		if cause := recover(); cause != nil {
			ctrl.LoggerFrom(ctx).Error(fmt.Errorf("panic: %v", cause), "Reading the inputs failed", "HelmChartProxy", client.ObjectKeyFromObject(proxy), "stack", string(debug.Stack()))
			in.again = PollInterval
			fail(addonsv1.HelmReleaseProxyCreationFailedReason, errors.New("muster-helm has a defect: it panics while it reads the chart and the values; its log says where"))
		}
	}()
	var trouble *plan.Trouble
	if in.Selector, trouble = plan.NewSelector(proxy); trouble != nil {
		return fail(trouble.Reason, errors.New(trouble.Message))
	}
	problems := plan.Validate(proxy)
	var errs field.ErrorList
	var err error
	if in.Template, errs, err = templates.Examine(ctx, proxy); err != nil {
		in.again = PollInterval
		return fail(addonsv1.ValueParsingFailedReason, err)
	}
	if problems = append(problems, errs...); len(problems) > 0 {
		return fail(reasonOf(problems[0].Field), bounds.Errors(problems).ToAggregate())
	}
	if err := r.readLayers(ctx, proxy, in); err != nil {
		in.again = PollInterval
		return fail(addonsv1.ValueParsingFailedReason, err)
	}
	if err := r.readChart(ctx, proxy, in); err != nil {
		in.again, in.lacksChart = PollInterval, true
		return fail(addonsv1.HelmReleaseProxyCreationFailedReason, err)
	}
	return in
}

// reasonOf returns the reason for a problem in a field.
func reasonOf(field string) string {
	switch field {
	case "spec.valuesTemplate":
		return addonsv1.ValueParsingFailedReason
	case "spec.clusterSelector", "spec.namespaceSelector":
		return addonsv1.ClusterSelectionFailedReason
	default:
		return addonsv1.HelmReleaseProxyCreationFailedReason
	}
}

// readLayers reads spec.valuesFrom.
func (r *Reader) readLayers(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *Inputs) error {
	size := 0
	for i, from := range proxy.Spec.ValuesFrom {
		in.again = PollInterval
		data, found, err := r.readValues(ctx, proxy.Namespace, from)
		if err == nil && found {
			err = r.Check(ctx, proxy.Namespace, data)
		}
		if err != nil {
			return fmt.Errorf("spec.valuesFrom[%d]: %w", i, err)
		}
		if size += len(data); size > values.MaxSize {
			return fmt.Errorf("spec.valuesFrom: the values are larger than %d KiB together", values.MaxSize>>10)
		}
		if found {
			in.Layers = append(in.Layers, plan.Layer{Key: fmt.Sprintf("%02d.yaml", i), Data: data})
			in.Secret = in.Secret || from.Kind == plan.SecretKind
		}
	}
	in.Values = plan.Digest(fmt.Appendf(nil, "%s %d %q", proxy.UID, proxy.Generation, in.Layers))
	return nil
}

func (r *Reader) readValues(ctx context.Context, namespace string, from addonsv1.ValuesReference) (data []byte, found bool, err error) {
	key, name := client.ObjectKey{Namespace: namespace, Name: from.Name}, cmp.Or(from.Key, plan.ValuesKey)
	if from.Kind == plan.SecretKind {
		var secret *corev1.Secret
		if secret, err = r.secret(ctx, key); err == nil {
			data, found = secret.Data[name]
		}
	} else {
		var configMap corev1.ConfigMap
		if err = r.Live.Get(ctx, key, &configMap); err == nil {
			var text string
			text, found = configMap.Data[name]
			data = []byte(text)
		}
	}
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, false, fmt.Errorf("reading %s %q: %w", from.Kind, from.Name, err)
	case !found && !from.Optional:
		return nil, false, fmt.Errorf("there is no %s %q with the key %q", from.Kind, from.Name, name)
	}
	return data, found, nil
}

// secret reads a Secret that a HelmChartProxy names. If the program may not read it, the error says how to
// allow that.
func (r *Reader) secret(ctx context.Context, key client.ObjectKey) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, key, secret)
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("muster-helm may not get Secret %s; a cluster administrator allows it to read the Secrets of that namespace with: "+
			"kubectl create rolebinding %[2]s --namespace=%[3]s --clusterrole=%[2]s --serviceaccount=%[4]s:muster-helm", key, readersRole, key.Namespace, r.Namespace)
	}
	return secret, err
}

// ErrDownloading says that the download of a chart is under way.
var ErrDownloading = errors.New("the chart is being downloaded")

// Files returns the files for a Bundle. If a download takes longer than filesPatience, it returns
// ErrDownloading.
func (r *Reader) Files(ctx context.Context, in *Inputs) ([]fleetv1.BundleResource, error) {
	waiting, cancel := context.WithTimeout(ctx, filesPatience)
	defer cancel()
	files, err := r.Charts.Chart(waiting, in.request, in.Chart.Version)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, ErrDownloading
	}
	if err != nil {
		return nil, err
	}
	return plan.WithEmptyChart(files.Resources), nil
}

// AtHand returns an error unless Muster could create a new Bundle now: it withdraws a release only when the
// next one can take its place.
func (r *Reader) AtHand(ctx context.Context, in *Inputs) error {
	switch {
	case in.Incomplete:
		return errors.New(in.Trouble.Message)
	case in.Chart.Agent:
		return nil
	}
	_, err := r.Files(ctx, in)
	return err
}
