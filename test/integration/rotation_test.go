package integration

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/fixture"
)

const stampWebhook = "stamp.clusters.fleet.addons.cluster.x-k8s.io"

// The webhook's certificate is renewed, and then its CA replaced, by cert-manager while
// Clusters are being created: no call fails. The stamp fails open, so that a create that
// succeeds proves nothing: the API server's own count of failures does, and the stamp on
// every answer.
func TestCertificateRotation(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "rotation", nil)
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	original := issued(g, "muster-webhook")
	t.Cleanup(func() {
		g := NewWithT(t)
		renew(g, "muster-webhook", "muster-webhook-tls", func() {
			lasting(g, "muster-webhook", original.Spec.Duration, original.Spec.RenewBefore)
		})
		g.Eventually(served).Should(Succeed())
	})

	t.Run("of the certificate", func(t *testing.T) {
		g := NewWithT(t)
		load := startLoad(g, kube, namespace)
		defer load.stop()
		// A new lifetime is a new certificate at once, and 15 s later it is time again.
		begin := time.Now()
		renew(g, "muster-webhook", "muster-webhook-tls", func() {
			lasting(g, "muster-webhook", &metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: time.Hour - 15*time.Second})
		})
		g.Eventually(served).Should(Succeed())
		renew(g, "muster-webhook", "muster-webhook-tls", func() {})
		g.Eventually(served).Should(Succeed())
		// The rest need not wait for it.
		for range 3 {
			renew(g, "muster-webhook", "muster-webhook-tls", func() { reissue(g, "muster-webhook") })
			g.Eventually(served).Should(Succeed())
		}
		t.Logf("5 certificates in %s", time.Since(begin).Round(time.Millisecond))
		load.verify(t, g)
	})
	t.Run("of the CA", func(t *testing.T) {
		g := NewWithT(t)
		load := startLoad(g, kube, namespace)
		defer load.stop()
		before := secretData(g, "muster-webhook-tls", "ca.crt")
		renew(g, "muster-ca", "muster-ca", func() { reissue(g, "muster-ca") })
		g.Eventually(func(g Gomega) { // The issuer may still sign with the CA it knew.
			if bytes.Equal(secretData(g, "muster-webhook-tls", "ca.crt"), before) {
				renew(g, "muster-webhook", "muster-webhook-tls", func() { reissue(g, "muster-webhook") })
			}
			g.Expect(secretData(g, "muster-webhook-tls", "ca.crt")).NotTo(Equal(before))
		}).Should(Succeed())
		g.Eventually(served).Should(Succeed())
		time.Sleep(2 * time.Second) // Connections of before may have to be made anew.
		load.verify(t, g)
	})
}

func issued(g Gomega, name string) *certmanagerv1.Certificate {
	return get(g, &certmanagerv1.Certificate{}, "muster-system", name)
}

// lasting changes for how long a certificate is issued, and when it is to be renewed.
func lasting(g Gomega, name string, duration, renewBefore *metav1.Duration) {
	certificate := issued(g, name)
	before := certificate.DeepCopy()
	certificate.Spec.Duration, certificate.Spec.RenewBefore = duration, renewBefore
	g.Expect(admin.Patch(ctx, certificate, client.MergeFrom(before))).To(Succeed())
}

func secretData(g Gomega, name, key string) []byte {
	return get(g, &corev1.Secret{}, "muster-system", name).Data[key]
}

// renew waits until what is done has led to a new certificate in a Secret, and
// cert-manager is content with it.
func renew(g Gomega, certificateName, secretName string, do func()) {
	before := secretData(g, secretName, "tls.crt")
	do()
	g.Eventually(func(g Gomega) {
		g.Expect(secretData(g, secretName, "tls.crt")).NotTo(Equal(before))
		for _, condition := range issued(g, certificateName).Status.Conditions {
			if condition.Type == certmanagerv1.CertificateConditionIssuing {
				g.Expect(condition.Status).NotTo(Equal(cmmetav1.ConditionTrue))
			}
		}
	}).Should(Succeed())
}

// reissue asks cert-manager for a new certificate, as `cmctl renew` does.
func reissue(g Gomega, name string) {
	certificate := issued(g, name)
	before := certificate.DeepCopy()
	// A merge patch of a list puts it in place of the old one.
	certificate.Status.Conditions = []certmanagerv1.CertificateCondition{{
		Type: certmanagerv1.CertificateConditionIssuing, Status: cmmetav1.ConditionTrue, Reason: "ManuallyTriggered", Message: "by the test",
	}}
	g.Expect(admin.Status().Patch(ctx, certificate, client.MergeFrom(before))).To(Succeed())
}

// served succeeds when the webhook serves the certificate of the Secret, and is ready,
// which it only says of itself when it serves what is mounted.
func served(g Gomega) {
	block, _ := pem.Decode(secretData(g, "muster-webhook-tls", "tls.crt"))
	g.Expect(block).NotTo(BeNil())
	connection, err := tls.Dial("tcp", "127.0.0.1:"+portOf(g, webhookProcess, "--webhook-port="), &tls.Config{InsecureSkipVerify: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer connection.Close() //nolint:errcheck // Nothing was sent.
	g.Expect(connection.ConnectionState().PeerCertificates[0].Raw).To(Equal(block.Bytes))
	response, err := http.Get("http://127.0.0.1:" + portOf(g, webhookProcess, "--health-addr=:") + "/readyz")
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close() //nolint:errcheck // It is not read.
	g.Expect(response.StatusCode).To(Equal(http.StatusOK))
}

// load creates Clusters, in dry runs, until it is stopped.
type load struct {
	kube      *kubernetes.Clientset
	begin     time.Time
	before    metrics.Snapshot
	end       func()
	wait      sync.WaitGroup
	answered  atomic.Int64
	unstamped atomic.Int64
	failed    atomic.Int64
	problem   atomic.Value
}

func startLoad(g Gomega, kube *kubernetes.Clientset, namespace string) *load {
	before, err := metrics.Scrape(ctx, kube.RESTClient())
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan struct{})
	l := &load{kube: kube, begin: time.Now(), before: before, end: sync.OnceFunc(func() { close(done) })}
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
	elapsed := time.Since(l.begin)
	after, err := metrics.Scrape(ctx, l.kube.RESTClient())
	g.Expect(err).NotTo(HaveOccurred())
	delta := func(metric string, pass func(map[string]string) bool) float64 {
		name := "apiserver_admission_webhook_" + metric
		return after.Sum(name, pass) - l.before.Sum(name, pass)
	}
	ours := func(labels map[string]string) bool { return labels["name"] == stampWebhook }
	calls := delta("request_total", ours)
	rate := float64(l.answered.Load()) / elapsed.Seconds()
	t.Logf("%d creates in %s, %.0f/s; %.0f calls of the stamp, %.0f rejected, %.0f failed open",
		l.answered.Load(), elapsed.Round(time.Millisecond), rate, calls, delta("rejection_count", ours), delta("fail_open_count", ours))
	g.Expect(l.failed.Load()).To(BeZero(), "the last: %v", l.problem.Load())
	g.Expect(l.unstamped.Load()).To(BeZero(), "of %d", l.answered.Load())
	// It is some 80/s on a machine that does nothing else; how fast it is says nothing
	// about rotation, but a load there must have been.
	g.Expect(l.answered.Load()).To(BeNumerically(">=", 100))
	g.Expect(calls).To(BeNumerically(">=", l.answered.Load()))
	g.Expect(delta("request_total", func(labels map[string]string) bool { return ours(labels) && labels["code"] != "200" })).To(BeZero())
	// Of any webhook: nothing else is created meanwhile that one should refuse.
	g.Expect(delta("rejection_count", nil)).To(BeZero())
	g.Expect(delta("fail_open_count", nil)).To(BeZero())
}
