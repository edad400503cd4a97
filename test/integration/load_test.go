package integration

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	. "github.com/onsi/gomega"
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

// Many clients create large Clusters at once, or still more create Clusters of medium size, again and again. The
// webhook stays within its memory limit and stamps the Clusters of other users, and no fail-closed request of theirs
// is refused. The requests do not come from the API server, which takes longer over them than the webhook. The
// webhook lets all the large ones through; a slow machine does not answer all the others in time.
func TestFloods(t *testing.T) {
	for name, test := range map[string]struct {
		labels, size, atOnce, rounds int
		answered                     bool
	}{"large": {223_000, 2_900_000, 10, 4, true}, "medium": {18_000, 235_000, 480, 3, false}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			g.Expect(env.Restart(ctx, webhookProcess)).To(Succeed())
			webhook := pidOf(webhookProcess)
			g.Expect(usage.ResetPeak(webhook)).To(Succeed())
			body := s.review(g, test.labels)
			g.Expect(len(body)).To(BeNumerically("~", test.size, test.size/14))
			// These requests share connections, like the API server's.
			caller := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			defer caller.CloseIdleConnections()
			url := "https://127.0.0.1:" + portOf(g, webhookProcess, "--webhook-port=")
			var attack errgroup.Group
			for range test.atOnce {
				attack.Go(func() (failed error) {
					for range test.rounds {
						for _, path := range []string{"/stamp-cluster?timeout=3s", "/validate-cluster?timeout=3s"} {
							failed = cmp.Or(failed, call(caller, url+path, body))
						}
					}
					return failed
				})
			}
			for i := range 20 {
				other := s.cluster(fmt.Sprintf("other-%d", i))
				create(g, other)
				g.Expect(other.Labels).To(HaveKey(stamp.ClassNameLabel), "let through without its stamp")
			}
			failed := attack.Wait()
			memory, err := usage.MemoryOf(webhook)
			g.Expect(err).NotTo(HaveOccurred())
			t.Logf("the webhook held at most %.0f MiB; of the flood: %v", memory.Peak, failed)
			g.Expect(memory.Peak).To(BeNumerically("<", webhookLimit*9/10))
			if test.answered {
				g.Expect(failed).NotTo(HaveOccurred())
			}
		})
	}
}

// review returns the review of a new Cluster with this many labels. Of everything that the webhook reads, short
// labels take the most memory.
func (s scene) review(g Gomega, labels int) []byte {
	cluster := s.cluster("large")
	cluster.Spec.Topology.ClassRef.Namespace, cluster.Labels = "", map[string]string{}
	for i := range labels {
		cluster.Labels[fmt.Sprintf("k%06d", i)] = ""
	}
	object, err := json.Marshal(cluster)
	g.Expect(err).NotTo(HaveOccurred())
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "large", Namespace: s.namespace, Name: "large", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
	}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	g.Expect(err).NotTo(HaveOccurred())
	return body
}

// call sends a review, which the webhook must answer and allow.
func call(caller *http.Client, url string, body []byte) error {
	response, err := caller.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	review := &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(response.Body).Decode(review); err != nil {
		return err
	}
	if review.Response == nil || !review.Response.Allowed || review.Response.UID != "large" {
		return fmt.Errorf("%s: %+v", url, review.Response)
	}
	return nil
}
