package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
)

const stampWebhook = "stamp.clusters.fleet.addons.cluster.x-k8s.io"

// While Clusters are being created, cert-manager renews the webhook's certificate, and then replaces its CA: no call
// fails. The stamp fails open, so a create that succeeds proves nothing. The API server's own count of failures does,
// and the stamp on every answer.
func TestCertificateRotation(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "rotation", nil)
	const its = "muster-webhook"
	lasting := func(spec string) func() {
		return func() { patch(g, issued(g, its), `{"spec":`+spec+`}`) }
	}
	original := issued(g, its).Spec
	t.Cleanup(func() {
		renew(g, its, its+"-tls", lasting(fmt.Sprintf(`{"duration":%q,"renewBefore":%q}`, original.Duration.Duration, original.RenewBefore.Duration)))
		g.Eventually(served).Should(Succeed())
	})
	t.Run("of the certificate", func(t *testing.T) {
		g := NewWithT(t)
		load := startLoad(g, namespace)
		defer load.stop()
		for _, how := range []func(){
			lasting(`{"duration":"1h","renewBefore":"59m45s"}`), // Renews at once, and 15 s later.
			func() {},
			func() { reissue(g, its) }, func() { reissue(g, its) }, func() { reissue(g, its) },
		} {
			renew(g, its, its+"-tls", how)
			g.Eventually(served).Should(Succeed())
		}
		load.verify(t, g)
	})
	t.Run("of the CA", func(t *testing.T) {
		g := NewWithT(t)
		load := startLoad(g, namespace)
		defer load.stop()
		before := secretData(g, its+"-tls", "ca.crt")
		renew(g, "muster-ca", "muster-ca", func() { reissue(g, "muster-ca") })
		g.Eventually(func(g Gomega) { // The issuer may still sign with the old CA.
			if bytes.Equal(secretData(g, its+"-tls", "ca.crt"), before) {
				renew(g, its, its+"-tls", func() { reissue(g, its) })
			}
			g.Expect(secretData(g, its+"-tls", "ca.crt")).NotTo(Equal(before))
		}).Should(Succeed())
		g.Eventually(served).Should(Succeed())
		time.Sleep(2 * time.Second) // Earlier connections may have to be renewed.
		load.verify(t, g)
	})
}

func issued(g Gomega, name string) *certmanagerv1.Certificate {
	return get(g, &certmanagerv1.Certificate{}, "muster-system", name)
}

func secretData(g Gomega, name, key string) []byte {
	return get(g, &corev1.Secret{}, "muster-system", name).Data[key]
}

// renew calls do, then waits until a Secret holds a new certificate and cert-manager reports it as ready.
func renew(g Gomega, certificateName, secretName string, do func()) {
	before := secretData(g, secretName, "tls.crt")
	do()
	g.Eventually(func(g Gomega) {
		g.Expect(secretData(g, secretName, "tls.crt")).NotTo(Equal(before))
		g.Expect(issued(g, certificateName).Status.Conditions).NotTo(ContainElement(
			And(HaveField("Type", certmanagerv1.CertificateConditionIssuing), HaveField("Status", cmmetav1.ConditionTrue))))
	}).Should(Succeed())
}

// reissue asks cert-manager for a new certificate, as `cmctl renew` does.
func reissue(g Gomega, name string) {
	certificate := issued(g, name)
	before := certificate.DeepCopy()
	// A merge patch replaces the whole list.
	certificate.Status.Conditions = []certmanagerv1.CertificateCondition{{
		Type: certmanagerv1.CertificateConditionIssuing, Status: cmmetav1.ConditionTrue, Reason: "ManuallyTriggered", Message: "by the test",
	}}
	g.Expect(admin.Status().Patch(ctx, certificate, client.MergeFrom(before))).To(Succeed())
}

// served succeeds when the webhook serves the certificate of the Secret, and is ready. The webhook reports ready only
// when it serves the mounted certificate.
func served(g Gomega) {
	servesSecret(g, webhookProcess, "--webhook-port=")
	response, err := http.Get("http://127.0.0.1:" + portOf(g, webhookProcess, "--health-addr=:") + "/readyz")
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close() //nolint:errcheck // It is not read.
	g.Expect(response.StatusCode).To(Equal(http.StatusOK))
}

// servesSecret expects that a program serves the certificate of its Secret, on the port of a flag.
func servesSecret(g Gomega, program, flag string) {
	block, _ := pem.Decode(secretData(g, program+"-tls", "tls.crt"))
	g.Expect(block).NotTo(BeNil())
	connection, err := tls.Dial("tcp", "127.0.0.1:"+portOf(g, program, flag), &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer connection.Close() //nolint:errcheck // Nothing was sent.
	g.Expect(connection.ConnectionState().PeerCertificates[0].Raw).To(Equal(block.Bytes))
}

// load creates Clusters, in dry runs, until it is stopped.
type load struct {
	kube                        *kubernetes.Clientset
	before                      metrics.Snapshot
	end                         func()
	wait                        sync.WaitGroup
	answered, unstamped, failed atomic.Int64
	problem                     atomic.Value
}

func startLoad(g Gomega, namespace string) *load {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	before, err := metrics.Scrape(ctx, kube.RESTClient())
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan struct{})
	l := &load{kube: kube, before: before, end: sync.OnceFunc(func() { close(done) })}
	tick := time.NewTicker(time.Second / 80)
	for range 8 {
		l.wait.Go(func() {
			for {
				select {
				case <-done:
					tick.Stop()
					return
				case <-tick.C:
					l.create(namespace)
				}
			}
		})
	}
	return l
}

func (l *load) create(namespace string) {
	cluster := fixture.Cluster(namespace, "load", "class", "")
	if err := admin.Create(ctx, cluster, client.DryRunAll); err != nil {
		l.failed.Add(1)
		l.problem.Store(err)
		return
	}
	l.answered.Add(1)
	if !stamp.PinOf(cluster.Annotations).IsComplete() || cluster.Labels[stamp.ClassNameLabel] != "class" {
		l.unstamped.Add(1)
	}
}

func (l *load) stop() {
	l.end()
	l.wait.Wait()
}

// verify ends the load and demands that the API server counted no failed call.
func (l *load) verify(t *testing.T, g Gomega) {
	t.Helper()
	l.stop()
	after, err := metrics.Scrape(ctx, l.kube.RESTClient())
	g.Expect(err).NotTo(HaveOccurred())
	delta := func(metric string, pass func(map[string]string) bool) float64 {
		name := "apiserver_admission_webhook_" + metric
		return after.Sum(name, pass) - l.before.Sum(name, pass)
	}
	ours := func(labels map[string]string) bool { return labels["name"] == stampWebhook }
	g.Expect(l.failed.Load()).To(BeZero(), "the last: %v", l.problem.Load())
	g.Expect(l.unstamped.Load()).To(BeZero(), "of %d", l.answered.Load())
	// An idle machine reaches some 80/s. The rate says nothing about rotation, but there must have been some load.
	g.Expect(l.answered.Load()).To(BeNumerically(">=", 100))
	g.Expect(delta("request_total", ours)).To(BeNumerically(">=", l.answered.Load()))
	g.Expect(delta("request_total", func(labels map[string]string) bool { return ours(labels) && labels["code"] != "200" })).To(BeZero())
	// This counts rejections by any webhook: nothing else that one should refuse is created meanwhile.
	g.Expect(delta("rejection_count", nil)).To(BeZero())
	g.Expect(delta("fail_open_count", nil)).To(BeZero())
}

// webhookLimit is the memory limit of the webhook's container, in MiB.
const webhookLimit = 256

// fleetClusters is how many Fleet Clusters the webhook has in its caches during a flood.
const fleetClusters = 5000

// Many clients send the most expensive objects of some kind at once, again and again. The webhook stays within its
// memory limit, and stamps the Clusters of other users. The requests do not come from the API server, which takes
// longer over them than the webhook. They are about many namespaces, so that fairness bounds nothing.
func TestFloods(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	fillCaches(t, g)
	// Of everything that the webhook reads, short labels take the most memory, and of templates short actions.
	medium, large := s.labelled(g, 20_000), s.labelled(g, 223_000)
	g.Expect(len(medium)).To(BeNumerically("~", 254<<10, 2<<10))
	g.Expect(len(large)).To(BeNumerically("~", 2_900_000, 200_000))
	const template = 131072
	levels := strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100)
	flat, deep := chart(strings.Repeat("{{1}}", template/5)), chart(strings.Repeat("{{"+levels+"}}", template/205))
	for name, objects := range map[string]map[string][]string{
		"parentheses":                {"/validate-helmchartproxy": {chart("{{" + strings.Repeat("(", template-2))}},
		"blocks":                     {"/validate-helmchartproxy": {chart(strings.Repeat("{{if 1}}", template/8))}},
		"templates":                  {"/validate-helmchartproxy": {flat, deep}},
		"Clusters of 255 KiB":        {"/stamp-cluster": {medium}, "/validate-cluster": {medium}},
		"Clusters of 3 MB":           {"/stamp-cluster": {large}, "/validate-cluster": {large}},
		"templates and all Clusters": {"/validate-helmchartproxy": {flat, deep}, "/stamp-cluster": {medium, large}, "/validate-cluster": {medium}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := startFlood(t, g, 200, 10, objects)
			unstamped := s.createOthers(20, 0)
			for begin := time.Now(); f.sent.Load() < 600 && time.Since(begin) < 3*time.Minute; {
				time.Sleep(100 * time.Millisecond)
			}
			memory := f.stop(t, g)
			g.Expect(unstamped).To(BeEmpty(), "of 20 Clusters of others")
			g.Expect(f.sent.Load()).To(BeNumerically(">=", 600))
			g.Expect(memory.Peak).To(BeNumerically("<=", webhookLimit*9/10))
		})
	}
}

// While one tenant sends requests of up to 7 MiB without end, the Clusters of another one are stamped, each of them.
func TestFloodOfOneTenant(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	f := startFlood(t, g, 40, 1, map[string][]string{"/stamp-cluster": {s.labelled(g, 535_000), s.labelled(g, 20_000)}})
	unstamped := s.createOthers(100, 60<<10)
	memory := f.stop(t, g)
	g.Expect(unstamped).To(BeEmpty(), "of 100 Clusters of another tenant")
	g.Expect(memory.Peak).To(BeNumerically("<=", webhookLimit*9/10))
}

// The API server itself asks again when the webhook is too busy and answers 429 with Retry-After: a Cluster that meets a
// full budget is created late, with its stamp.
func TestBusyWebhookIsAskedAgain(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	// This request has all that its namespace may have, and ends before the API server asks again.
	body, sender := io.Pipe()
	defer func() { _ = sender.Close() }()
	slow, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://127.0.0.1:"+portOf(g, webhookProcess, "--webhook-port=")+"/stamp-cluster?timeout=1600ms", body)
	g.Expect(err).NotTo(HaveOccurred())
	slow.ContentLength = 5 << 20
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		caller := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		if response, err := caller.Do(slow); err == nil {
			_ = response.Body.Close()
		}
	}()
	_, err = sender.Write(review(g, s.namespace, s.labelled(g, 2000)))
	g.Expect(err).NotTo(HaveOccurred())
	time.Sleep(100 * time.Millisecond) // The webhook has seen it then.

	late := s.cluster("late")
	late.Annotations = map[string]string{"large": strings.Repeat("x", 60<<10)}
	begin := time.Now()
	create(g, late)
	t.Logf("the Cluster was created after %s", time.Since(begin).Round(time.Millisecond))
	g.Expect(time.Since(begin)).To(BeNumerically(">", time.Second), "it has met no full budget")
	g.Expect(late.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
	g.Expect(stamp.PinOf(late.Annotations)).NotTo(Equal(stamp.Pin{}))
	<-ended
}

// createOthers creates Clusters with an annotation of this many bytes in dry runs, and returns what happened to those
// that were refused, or let through without their stamp.
func (s scene) createOthers(count, size int) (unstamped []string) {
	for i := range count {
		other := s.cluster(fmt.Sprintf("other-%d", i))
		other.Annotations = map[string]string{"large": strings.Repeat("x", size)}
		if err := admin.Create(ctx, other, client.DryRunAll); err != nil {
			unstamped = append(unstamped, fmt.Sprintf("%s: %v", other.Name, err))
		} else if other.Labels[stamp.ClassNameLabel] == "" {
			unstamped = append(unstamped, other.Name)
		}
	}
	return unstamped
}

// fillCaches creates Fleet Clusters until the test ends.
func fillCaches(t *testing.T, g Gomega) {
	t.Helper()
	namespace := newNamespace(t, g, "many", nil)
	t.Cleanup(func() {
		NewWithT(t).Expect(admin.DeleteAllOf(ctx, &fleetv1.Cluster{}, client.InNamespace(namespace))).To(Succeed())
	})
	var all errgroup.Group
	all.SetLimit(16)
	for i := range fleetClusters {
		all.Go(func() error {
			its := named(&fleetv1.Cluster{}, namespace, fmt.Sprintf("many-%d", i))
			its.Labels = map[string]string{"env": "prod", "region": "eu-west-1", "team": fmt.Sprintf("team-%d", i%100)}
			return admin.Create(ctx, its) // Without a kubeconfig, Fleet gives it no namespace: kube-controller-manager would delete these for long.
		})
	}
	g.Expect(all.Wait()).To(Succeed())
}

// flood sends reviews to the webhook until it is stopped.
type flood struct {
	webhook    int
	end        func()
	wait       sync.WaitGroup
	sent, busy atomic.Int64
	failed     atomic.Value
}

// startFlood restarts the webhook and sends it reviews of the creation of objects at the given paths, in many namespaces.
func startFlood(t *testing.T, g Gomega, atOnce, namespaces int, objects map[string][]string) *flood {
	t.Helper()
	g.Expect(env.Restart(ctx, webhookProcess)).To(Succeed())
	type request struct {
		path string
		body []byte
	}
	var all []request
	for path, its := range objects {
		for _, object := range its {
			for i := range namespaces {
				all = append(all, request{path, review(g, fmt.Sprintf("flood-%d", i), object)})
			}
		}
	}
	f := &flood{webhook: pidOf(webhookProcess)}
	g.Expect(usage.ResetPeak(f.webhook)).To(Succeed())
	// These requests share connections, like the API server's.
	caller := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	url := "https://127.0.0.1:" + portOf(g, webhookProcess, "--webhook-port=")
	flooding, cancel := context.WithCancel(ctx)
	f.end = func() { cancel(); f.wait.Wait(); caller.CloseIdleConnections() }
	t.Cleanup(f.end)
	for worker := range atOnce {
		f.wait.Go(func() {
			for i := worker; flooding.Err() == nil; i++ {
				its := all[i%len(all)]
				err := f.call(flooding, caller, url+its.path+"?timeout=3s", its.body)
				if f.sent.Add(1); err != nil && flooding.Err() == nil {
					f.failed.Store(err.Error())
				}
			}
		})
	}
	return f
}

// call sends a review, which the webhook must answer.
func (f *flood) call(ctx context.Context, caller *http.Client, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := caller.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusTooManyRequests {
		f.busy.Add(1)
		return nil
	}
	answer := &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil || answer.Response == nil || answer.Response.UID != "flood" {
		return fmt.Errorf("%s: %s %+v: %w", url, response.Status, answer.Response, err)
	}
	return nil
}

// stop ends the flood, and returns the memory that the webhook took. The webhook must not have ended.
func (f *flood) stop(t *testing.T, g Gomega) usage.Memory {
	t.Helper()
	f.end()
	g.Expect(pidOf(webhookProcess)).To(Equal(f.webhook), "the webhook has ended")
	memory, err := usage.MemoryOf(f.webhook)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("the webhook held at most %.0f MiB; of %d requests, %d were told to try again; a failed one: %v", memory.Peak, f.sent.Load(), f.busy.Load(), f.failed.Load())
	return memory
}

// labelled returns a new Cluster with this many labels.
func (s scene) labelled(g Gomega, labels int) string {
	cluster := s.cluster("large")
	cluster.Spec.Topology.ClassRef.Namespace, cluster.Labels = "", map[string]string{}
	for i := range labels {
		cluster.Labels[fmt.Sprintf("k%06d", i)] = ""
	}
	object, err := json.Marshal(cluster)
	g.Expect(err).NotTo(HaveOccurred())
	return string(object)
}

// chart returns a new HelmChartProxy with a values template. Its namespace is that of the review.
func chart(template string) string {
	return fmt.Sprintf(`{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"HelmChartProxy","metadata":{"name":"large","namespace":"$NAMESPACE"},`+
		`"spec":{"clusterSelector":{},"repoURL":"https://charts.example.com","chartName":"web","valuesTemplate":%q}}`, template)
}

// review returns the review of the creation of an object in a namespace.
func review(g Gomega, namespace, object string) []byte {
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "flood", Namespace: namespace, Name: "large", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(strings.Replace(object, "$NAMESPACE", namespace, 1))},
	}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	g.Expect(err).NotTo(HaveOccurred())
	return body
}
