// Command admission measures what Muster's stamp costs the creation of a Cluster,
// against a webhook that does nothing on the same server and TLS setup, in one run: the
// two take turns, round by round.
//
// Clusters are created with dryRun=All: the API server calls webhooks without side
// effects for those as for any other create, and only the write to etcd is left out.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	stampWebhook = "stamp.clusters.fleet.addons.cluster.x-k8s.io"
	noopWebhook  = "noop.bench.example.com"
	labelPolicy  = "muster-class-labels"
	// armLabel is on the namespaces of the benchmark and says which webhook is called.
	armLabel = "muster-bench"
	roundOf  = 100
	// workers is how many creates are under way when throughput is measured.
	workers = 8
)

// arms are the namespaces that take turns: Muster's stamp, the no-op, the component
// class-labels without a webhook, and none of them.
var arms = []string{"bench-stamp", "bench-noop", "bench-labels", "bench-none"}

type options struct {
	creates   int
	output    string
	serveNoop string
	port      int
}

func main() {
	var o options
	flag.IntVar(&o.creates, "creates", 5000, "creates for each webhook")
	flag.StringVar(&o.output, "output", filepath.Join(".dev", "bench-admission.json"), "where to write the figures as JSON")
	flag.StringVar(&o.serveNoop, "serve-noop", "", "serve the no-op webhook with the certificate in this directory (for the benchmark itself)")
	flag.IntVar(&o.port, "port", 0, "the port of the no-op webhook")
	flag.Parse()
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-admission:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.serveNoop != "" {
		return serveNoop(ctx, o.serveNoop, o.port)
	}
	env, err := stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	result := report.New("admission")
	result.Settings = map[string]string{"creates": strconv.Itoa(o.creates)}
	table, err := measure(ctx, env, o.creates)
	if down := env.Down(); err == nil {
		err = down
	}
	if err != nil {
		return err
	}
	result.Add(*table)
	table.Print(os.Stdout)
	return result.Write(o.output)
}

// bench is one run.
type bench struct {
	env       *stack.Stack
	admin     client.Client
	kube      *kubernetes.Clientset
	latencies map[string][]time.Duration
	// together is how long the creates of each arm took, several at a time.
	together map[string]time.Duration
}

func measure(ctx context.Context, env *stack.Stack, creates int) (*report.Table, error) {
	config, err := env.RESTConfig()
	if err != nil {
		return nil, err
	}
	b := &bench{env: env, latencies: map[string][]time.Duration{}, together: map[string]time.Duration{}}
	if b.admin, err = fixture.Client(env); err != nil {
		return nil, err
	}
	if b.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	port, stop, err := startNoop(ctx, env, b.admin)
	if stop != nil {
		defer stop()
	}
	if err != nil {
		return nil, err
	}
	if err := b.configure(ctx, int32(port)); err != nil {
		return nil, err
	}
	if err := b.rounds(ctx, 2*roundOf); err != nil { // To warm up.
		return nil, err
	}
	b.latencies = map[string][]time.Duration{}
	begin := time.Now()
	before, err := metrics.Scrape(ctx, b.kube.RESTClient())
	if err != nil {
		return nil, err
	}
	if err := b.rounds(ctx, creates); err != nil {
		return nil, err
	}
	after, err := metrics.Scrape(ctx, b.kube.RESTClient())
	if err != nil {
		return nil, err
	}
	calls, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-webhook"), Since: begin, Until: time.Now()})
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(begin)
	if err := b.allTogether(ctx, creates); err != nil {
		return nil, err
	}
	return newTable(b, before, after, len(calls), elapsed)
}

// configure makes the namespaces, gives the no-op its own, and keeps the stamp out of
// all but the first.
func (b *bench) configure(ctx context.Context, port int32) error {
	for _, arm := range arms {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: arm, Labels: map[string]string{armLabel: arm}}}
		if err := b.admin.Create(ctx, namespace); err != nil {
			return err
		}
	}
	shipped := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := b.admin.Get(ctx, client.ObjectKey{Name: "muster-mutating-webhook"}, shipped); err != nil {
		return err
	}
	if len(shipped.Webhooks) != 1 || shipped.Webhooks[0].Name != stampWebhook {
		return fmt.Errorf("the shipped configuration is not that of the stamp alone")
	}
	// As the stamp ships, rules and match conditions included; only who answers differs.
	noop := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
		Name: noopName, Annotations: map[string]string{certmanagerv1.WantInjectAnnotation: "muster-system/" + noopName}}}
	hook := shipped.Webhooks[0].DeepCopy()
	hook.Name = noopWebhook
	path := noopPath
	hook.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: "muster-system", Name: noopName, Path: &path, Port: &port}}
	hook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{armLabel: arms[1]}}
	noop.Webhooks = []admissionregistrationv1.MutatingWebhook{*hook}
	if err := b.admin.Create(ctx, noop); err != nil {
		return err
	}
	if err := b.labelInOne(ctx); err != nil {
		return err
	}
	before := shipped.DeepCopy()
	shipped.Webhooks[0].NamespaceSelector.MatchExpressions = append(shipped.Webhooks[0].NamespaceSelector.MatchExpressions,
		metav1.LabelSelectorRequirement{Key: armLabel, Operator: metav1.LabelSelectorOpNotIn, Values: arms[1:]})
	if err := b.admin.Patch(ctx, shipped, client.MergeFrom(before)); err != nil {
		return err
	}
	return poll.Until(ctx, "each webhook in its own namespace", time.Minute, b.routed)
}

// labelInOne installs the component class-labels for one namespace.
func (b *bench) labelInOne(ctx context.Context) error {
	if err := b.env.StartComponent(ctx, "class-labels"); err != nil {
		return err
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{}
	if err := b.admin.Get(ctx, client.ObjectKey{Name: labelPolicy}, binding); err != nil {
		return err
	}
	before := binding.DeepCopy()
	binding.Spec.MatchResources = &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{armLabel: arms[2]}}}
	return b.admin.Patch(ctx, binding, client.MergeFrom(before))
}

// routed tells whether the stamp is called in its namespace only, and the no-op in its.
func (b *bench) routed(ctx context.Context) error {
	for _, arm := range arms {
		start, err := metrics.Scrape(ctx, b.kube.RESTClient())
		if err != nil {
			return err
		}
		if _, err := b.create(ctx, arm); err != nil {
			return err // The labels are elsewhere than they should be, perhaps only not yet.
		}
		end, err := metrics.Scrape(ctx, b.kube.RESTClient())
		if err != nil {
			return err
		}
		called := func(name string) bool { return answered(start, end, name) == 1 }
		if called(stampWebhook) != (arm == arms[0]) || called(noopWebhook) != (arm == arms[1]) {
			return fmt.Errorf("in %s, stamp called: %v, no-op called: %v", arm, called(stampWebhook), called(noopWebhook))
		}
	}
	return nil
}

// answered counts the calls of a webhook that it answered well.
func answered(before, after metrics.Snapshot, name string) float64 {
	good := func(labels map[string]string) bool { return labels["name"] == name && labels["code"] == "200" }
	failed := func(labels map[string]string) bool { return labels["name"] == name }
	const total, open = "apiserver_admission_webhook_request_total", "apiserver_admission_webhook_fail_open_count"
	return after.Sum(total, good) - before.Sum(total, good) - (after.Sum(open, failed) - before.Sum(open, failed))
}

// rounds creates this many Clusters in each namespace, in turns, every other time in
// the opposite order.
func (b *bench) rounds(ctx context.Context, creates int) error {
	for done := 0; done < creates; done += roundOf {
		order := slices.Clone(arms)
		if done/roundOf%2 == 1 {
			slices.Reverse(order)
		}
		for _, arm := range order {
			for range min(roundOf, creates-done) {
				latency, err := b.create(ctx, arm)
				if err != nil {
					return err
				}
				b.latencies[arm] = append(b.latencies[arm], latency)
			}
		}
	}
	return nil
}

// allTogether creates as many Clusters again, several at a time.
func (b *bench) allTogether(ctx context.Context, creates int) error {
	for done := 0; done < creates; done += roundOf {
		for _, arm := range arms {
			var group errgroup.Group
			group.SetLimit(workers)
			begin := time.Now()
			for range min(roundOf, creates-done) {
				group.Go(func() error {
					_, err := b.create(ctx, arm)
					return err
				})
			}
			if err := group.Wait(); err != nil {
				return err
			}
			b.together[arm] += time.Since(begin)
		}
	}
	return nil
}

// create creates one Cluster, and checks that it was stamped where it should be.
func (b *bench) create(ctx context.Context, arm string) (time.Duration, error) {
	cluster := fixture.Cluster(arm, "one", "standard", "")
	cluster.Labels = map[string]string{"env": "prod"}
	begin := time.Now()
	if err := b.admin.Create(ctx, cluster, client.DryRunAll); err != nil {
		return 0, err
	}
	latency := time.Since(begin)
	if stamped := stamp.PinOf(cluster.Annotations).IsComplete(); stamped != (arm == arms[0]) {
		return 0, fmt.Errorf("a Cluster in %s is stamped: %v", arm, stamped)
	}
	if labelled := cluster.Labels[stamp.ClassNameLabel] == "standard"; labelled != (arm == arms[0] || arm == arms[2]) {
		return 0, fmt.Errorf("a Cluster in %s has the labels of its class: %v", arm, labelled)
	}
	return latency, nil
}
