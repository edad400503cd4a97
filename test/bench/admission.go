package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	stampWebhook = "stamp.clusters.fleet.addons.cluster.x-k8s.io"
	noopWebhook  = "noop.bench.example.com"
	labelPolicy  = "muster-class-labels"
	noopPath     = "/noop"
	roundOf      = 100
	// maxAdmission limits the cost of the stamp, as a multiple of the cost of a webhook that does nothing.
	maxAdmission = 1.3
)

// These namespaces take turns. In each, one thing runs: Muster's stamp, a webhook that does nothing on the same
// server, or the component class-labels without a webhook.
const stamped, noop, labelled = "bench-stamp", "bench-noop", "bench-labels"

var arms = []string{stamped, noop, labelled}

// measureAdmission measures how much Muster's stamp adds to the creation of a Cluster, compared with a webhook that
// does nothing: the two take turns, round by round. Clusters are created with dryRun=All: the API server calls
// webhooks without side effects for those as for any other create, and only omits the write to etcd.
func measureAdmission(ctx context.Context, s *session) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	url, authority, err := s.startNoop(ctx)
	if err != nil {
		return err
	}
	if err := s.routeAdmission(ctx, url, authority); err != nil {
		return err
	}
	if err := s.createInTurns(ctx, 2*roundOf); err != nil { // This is the warm-up.
		return err
	}
	begin := time.Now()
	before, err := metrics.Scrape(ctx, s.kube.RESTClient())
	if err != nil {
		return err
	}
	if err := s.createInTurns(ctx, s.n); err != nil {
		return err
	}
	after, err := metrics.Scrape(ctx, s.kube.RESTClient())
	if err != nil {
		return err
	}
	calls, err := s.env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", webhook), Since: begin, Until: time.Now()})
	if err != nil {
		return err
	}
	of := func(histogram, label, name string) metrics.Histogram {
		return metrics.HistogramBetween(before, after, histogram, func(labels map[string]string) bool { return labels[label] == name })
	}
	const duration = "apiserver_admission_webhook_admission_duration_seconds"
	ours, nothing := of(duration, "name", stampWebhook), of(duration, "name", noopWebhook)
	policy := of("apiserver_mutating_admission_policy_check_duration_seconds", "policy", labelPolicy)
	for name, h := range map[string]metrics.Histogram{stampWebhook: ours, noopWebhook: nothing} {
		if int(h.Count) != s.n || int(answered(before, after, name)) != s.n {
			return fmt.Errorf("%s: %v calls, %v of them answered, for %d creates", name, h.Count, answered(before, after, name), s.n)
		}
	}
	if int(policy.Count) < s.n {
		return fmt.Errorf("%s: %v evaluations for %d creates", labelPolicy, policy.Count, s.n)
	}
	t := table{title: "Admission of a Cluster"}
	t.note("%d creates (dryRun=All, one at a time) through each, in rounds of %d that take turns; by the API server's own metrics, whose quantiles are interpolated in a bucket, while means are exact", s.n, roundOf)
	t.note("baseline: a webhook that does nothing, on the same server, called by the same rules; of class-labels: the stamp")
	t.add(
		value("admission, p99", "ms", 1000*ours.Quantile(.99)).against(1000*nothing.Quantile(.99)).ratioAtMost(maxAdmission),
		value("admission, mean", "ms", 1000*ours.Mean()).against(1000*nothing.Mean()),
		value("class labels by a policy in the API server, mean", "ms", 1000*policy.Mean()).against(1000*ours.Mean()),
		value("API calls by the webhook", "", float64(len(calls))).atMost(0),
	)
	s.print(t)
	return nil
}

// startNoop runs the webhook that does nothing as a process of its own, and returns its URL and CA.
func (s *session) startNoop(ctx context.Context) (url string, authority []byte, err error) {
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Join(s.env.Dir(), "noop")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	for name, content := range map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return "", nil, err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		return "", nil, err
	}
	_, err = startChild(ctx, "webhook", dir, strconv.Itoa(address.Port))
	return "https://" + address.String() + noopPath, certificate, err
}

// serveNoop serves a webhook that allows everything, on the server that Muster's webhook is built on.
func serveNoop(ctx context.Context, certDir, port string) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Port: number, CertDir: certDir})
	server.Register(noopPath, &admission.Webhook{Handler: admission.HandlerFunc(
		func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })})
	fmt.Println(ready)
	return server.Start(ctx)
}

// routeAdmission makes the namespaces, and routes each to one of the stamp, the webhook that does nothing, and the
// policy of class-labels.
func (s *session) routeAdmission(ctx context.Context, url string, authority []byte) error {
	for _, arm := range arms {
		namespace := &corev1.Namespace{}
		namespace.Name, namespace.Labels = arm, map[string]string{armLabel: arm}
		if err := s.admin.Create(ctx, namespace); err != nil {
			return err
		}
	}
	shipped := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.admin.Get(ctx, client.ObjectKey{Name: "muster-mutating-webhook"}, shipped); err != nil {
		return err
	}
	if len(shipped.Webhooks) != 1 || shipped.Webhooks[0].Name != stampWebhook {
		return fmt.Errorf("the shipped configuration is not that of the stamp alone")
	}
	only := func(selector *metav1.LabelSelector, arm string) *metav1.LabelSelector {
		selector = selector.DeepCopy()
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: armLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{arm}})
		return selector
	}
	// It is the stamp's configuration as shipped, rules and match conditions included, with another webhook behind
	// it.
	other := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{*shipped.Webhooks[0].DeepCopy()}}
	other.Name = "bench-noop"
	hook := &other.Webhooks[0]
	hook.Name, hook.ClientConfig = noopWebhook, admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority}
	hook.NamespaceSelector = only(hook.NamespaceSelector, noop)
	if err := s.admin.Create(ctx, other); err != nil {
		return err
	}
	before := shipped.DeepCopy()
	shipped.Webhooks[0].NamespaceSelector = only(shipped.Webhooks[0].NamespaceSelector, stamped)
	if err := s.admin.Patch(ctx, shipped, client.MergeFrom(before)); err != nil {
		return err
	}
	if err := s.env.StartComponent(ctx, "class-labels"); err != nil {
		return err
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{}
	if err := s.admin.Get(ctx, client.ObjectKey{Name: labelPolicy}, binding); err != nil {
		return err
	}
	bound := binding.DeepCopy()
	binding.Spec.MatchResources = &admissionregistrationv1.MatchResources{NamespaceSelector: only(&metav1.LabelSelector{}, labelled)}
	if err := s.admin.Patch(ctx, binding, client.MergeFrom(bound)); err != nil {
		return err
	}
	// The API server counts the calls of the other webhook.
	return poll.Until(ctx, "each in its own namespace", time.Minute, func(ctx context.Context) error {
		for _, arm := range arms {
			if err := s.createIn(ctx, arm); err != nil {
				return err
			}
		}
		return nil
	})
}

// answered counts the calls that a webhook answered without failure.
func answered(before, after metrics.Snapshot, name string) float64 {
	between := func(metric string, pass func(labels map[string]string) bool) float64 {
		return after.Sum(metric, pass) - before.Sum(metric, pass)
	}
	return between("apiserver_admission_webhook_request_total", func(labels map[string]string) bool { return labels["name"] == name && labels["code"] == "200" }) -
		between("apiserver_admission_webhook_fail_open_count", func(labels map[string]string) bool { return labels["name"] == name })
}

// createInTurns creates this many Clusters in each namespace, every other round in the opposite order.
func (s *session) createInTurns(ctx context.Context, creates int) error {
	for done := 0; done < creates; done += roundOf {
		order := slices.Clone(arms)
		if done/roundOf%2 == 1 {
			slices.Reverse(order)
		}
		for _, arm := range order {
			for range min(roundOf, creates-done) {
				if err := s.createIn(ctx, arm); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// createIn creates one Cluster, and checks that it was stamped where it should be.
func (s *session) createIn(ctx context.Context, arm string) error {
	cluster := fixture.Cluster(arm, "one", "standard", "")
	cluster.Labels = map[string]string{"env": "prod"}
	if err := s.admin.Create(ctx, cluster, client.DryRunAll); err != nil {
		return err
	}
	if isStamped := stamp.PinOf(cluster.Annotations).IsComplete(); isStamped != (arm == stamped) {
		return fmt.Errorf("a Cluster in %s is stamped: %v", arm, isStamped)
	}
	if hasLabels := cluster.Labels[stamp.ClassNameLabel] == "standard"; hasLabels != (arm == stamped || arm == labelled) {
		return fmt.Errorf("a Cluster in %s has the labels of its class: %v", arm, hasLabels)
	}
	return nil
}
