// Package inputs reads what all releases of a HelmChartProxy are made from: the chart, the values
// template, and values and credentials from ConfigMaps and Secrets. It holds everything that is kept of
// a HelmChartProxy in memory; no event tells of most of it, so it is read again at an interval.
package inputs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/values"
)

const (
	// PollInterval is how often Secrets and ConfigMaps are read again, and repositories that failed.
	PollInterval = 30 * time.Second
	// readPatience is how long all that may take.
	readPatience = 3 * time.Minute
	// filesPatience is how long a Bundle waits for its files; a download goes on without it. Those of others wait
	// behind it.
	filesPatience = 100 * time.Millisecond
	// readersRole is the ClusterRole that an administrator binds where the program may read Secrets.
	readersRole = "muster-helm-read-secrets"
)

// Inputs are what the releases of a HelmChartProxy are made from. They are shared: nobody changes them.
type Inputs struct {
	// Trouble says what is wrong with them. If that makes them Incomplete, everything that is deployed is
	// retained; otherwise the chart that was found last is used.
	Trouble    plan.Trouble
	Incomplete bool
	// Notice is what the author should know.
	Notice   string
	Selector *plan.Selector
	Template *values.Template
	// Layers are the values from ConfigMaps and Secrets, in the order in which Helm merges them.
	Layers []plan.Layer
	// Secret says that one of them is from a Secret.
	Secret bool
	Chart  plan.Chart
	// Credentials are the data of the Secret with which agents reach the repository; nil for none.
	Credentials map[string][]byte
	// Values tells apart inputs that give other values, and Digest all.
	Values, Digest string

	credentials string
	lacksChart  bool
	request     repository.Request
	read        time.Time
	again       time.Duration
}

// CredentialsDigest returns the digest of the credentials that agents get. It goes into labels, in a digest
// with much else, and is one of itself with a key.
func (in *Inputs) CredentialsDigest() string { return in.credentials }

// Reader reads inputs.
type Reader struct {
	// Live reads past the cache: the program may not list Secrets.
	Live client.Reader
	// Cached reads Bundles.
	Cached client.Reader
	Charts *repository.Client
	// Check returns an error unless Helm can read values, for a HelmChartProxy of a namespace.
	Check func(ctx context.Context, namespace string, values []byte) error
	// Digest returns a digest with a key that only the program has.
	Digest func(ctx context.Context, of any) (string, error)
	// Wake makes a HelmChartProxy reconcile.
	Wake func(proxy plan.Key)
	// Namespace is the program's own.
	Namespace     string
	ChartInterval time.Duration
	Now           func() time.Time

	mu    sync.Mutex
	all   map[plan.Key]*entry
	slots map[string]chan struct{}
}

// entry is what is kept of one HelmChartProxy.
type entry struct {
	proxy types.UID
	// inputs were read last, of a generation; nil before.
	inputs     *Inputs
	generation int64
	isReading  bool
	// acted is the digest of the inputs that the releases were last woken for.
	acted string
}

// perNamespace is how many HelmChartProxies of a namespace are read at once: a slow repository holds up no
// other namespace.
const perNamespace = 2

// ErrReading says that the inputs are being read; Wake follows.
var ErrReading = errors.New("the chart and the values are being read")

// Get returns the inputs of a HelmChartProxy, and when they are read again; zero for never. It never waits: while
// they are read for the first time, or after a change, it returns ErrReading, and while they are read again the
// last ones.
func (r *Reader) Get(proxy *addonsv1.HelmChartProxy) (in *Inputs, again time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all, r.slots = map[plan.Key]*entry{}, map[string]chan struct{}{}
	}
	key := client.ObjectKeyFromObject(proxy)
	its := r.all[key]
	if its == nil || its.proxy != proxy.UID {
		its = &entry{proxy: proxy.UID}
		r.all[key] = its
	}
	isCurrent := its.inputs != nil && its.generation == proxy.Generation
	if isCurrent {
		if again = its.inputs.again; again > 0 {
			again = its.inputs.read.Add(again).Sub(r.Now())
		}
		if its.inputs.again == 0 || again > 0 {
			return its.inputs, again, nil
		}
	}
	if !its.isReading {
		its.isReading = true
		if r.slots[proxy.Namespace] == nil {
			r.slots[proxy.Namespace] = make(chan struct{}, perNamespace)
		}
		go r.refresh(proxy.DeepCopy(), r.slots[proxy.Namespace])
	}
	if isCurrent {
		return its.inputs, PollInterval, nil
	}
	return nil, 0, ErrReading
}

// refresh reads the inputs of a HelmChartProxy, and wakes it.
func (r *Reader) refresh(proxy *addonsv1.HelmChartProxy, slots chan struct{}) {
	slots <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), readPatience)
	in := r.read(ctx, proxy)
	var err error
	if in.Credentials != nil {
		in.credentials, err = r.Digest(ctx, in.Credentials)
	}
	if err != nil {
		in.Incomplete, in.again, in.Trouble = true, PollInterval, plan.Trouble{Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: err.Error()}
	}
	cancel()
	<-slots
	in.read = r.Now()
	in.Digest = plan.Digest(fmt.Appendf(nil, "%d %s %v %v %v %s", proxy.Generation, in.Values, in.Trouble, in.Notice, in.Chart, in.credentials))
	r.mu.Lock()
	if its := r.all[client.ObjectKeyFromObject(proxy)]; its != nil && its.proxy == proxy.UID {
		its.isReading, its.inputs, its.generation = false, in, proxy.Generation
	}
	r.mu.Unlock()
	r.Wake(client.ObjectKeyFromObject(proxy))
}

// IsNews reports, once, that a HelmChartProxy has other inputs than before.
func (r *Reader) IsNews(proxy plan.Key, in *Inputs) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	its := r.all[proxy]
	if its == nil || its.acted == in.Digest {
		return false
	}
	its.acted = in.Digest
	return true
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

// Forget drops what is kept of a HelmChartProxy.
func (r *Reader) Forget(proxy plan.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, proxy)
}

func (r *Reader) read(ctx context.Context, proxy *addonsv1.HelmChartProxy) *Inputs {
	in := &Inputs{}
	fail := func(reason string, err error) *Inputs {
		in.Incomplete, in.Trouble = true, plan.Trouble{Reason: reason, Message: err.Error()}
		return in
	}
	var trouble *plan.Trouble
	if in.Selector, trouble = plan.NewSelector(proxy); trouble != nil {
		return fail(trouble.Reason, errors.New(trouble.Message))
	}
	if problems := plan.Validate(proxy); len(problems) > 0 {
		return fail(reasonOf(problems[0].Field), bounds.Errors(problems).ToAggregate())
	}
	var err error
	if in.Template, err = values.Parse(proxy.Spec.ValuesTemplate); err != nil { // Validate has parsed it.
		return fail(addonsv1.ValueParsingFailedReason, err)
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
	key := client.ObjectKey{Namespace: namespace, Name: from.Name}
	name := from.Key
	if name == "" {
		name = plan.ValuesKey
	}
	if from.Kind == plan.SecretKind {
		var secret corev1.Secret
		if err = r.readSecret(ctx, key, &secret); err == nil {
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

// readSecret reads a Secret that a HelmChartProxy names. The error says how to allow it.
func (r *Reader) readSecret(ctx context.Context, key client.ObjectKey, secret *corev1.Secret) error {
	err := r.Live.Get(ctx, key, secret)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("muster-helm may not get Secret %s; a cluster administrator allows it to read the Secrets of that namespace with: "+
			"kubectl create rolebinding %[2]s --namespace=%[3]s --clusterrole=%[2]s --serviceaccount=%[4]s:muster-helm", key, readersRole, key.Namespace, r.Namespace)
	}
	return err
}

// ErrDownloading says that the files of a chart are on their way.
var ErrDownloading = errors.New("the chart is being downloaded")

// Files returns the files that a Bundle carries. It does not wait for long: see ErrDownloading.
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

// AtHand returns an error unless a new Bundle can be made: a release is not withdrawn before another one can
// take its place.
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

// isTooLarge reports whether a chart does not fit into a Bundle.
func isTooLarge(err error) bool {
	var size *repository.TooLargeError
	return errors.As(err, &size)
}
