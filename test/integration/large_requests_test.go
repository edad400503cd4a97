package integration

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/process"
)

// webhookLimit is the memory limit of the webhook's container, in MiB.
const webhookLimit = 256

// reviewOf returns the review of a Cluster with that many labels that is created. Short labels
// take the most memory of all that the webhook reads.
func reviewOf(g Gomega, namespace string, labels int) []byte {
	cluster := fixture.Cluster(namespace, "large", "standard", "")
	cluster.Labels = map[string]string{}
	for i := range labels {
		cluster.Labels[fmt.Sprintf("k%06d", i)] = ""
	}
	object, err := json.Marshal(cluster)
	g.Expect(err).NotTo(HaveOccurred())
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "large", Namespace: namespace, Name: "large", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
	}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	g.Expect(err).NotTo(HaveOccurred())
	return body
}

// One tenant creates as many large Clusters at once as they like: the webhook stays within its
// memory limit and lets them through, and what fails closed is not refused to others. The large
// requests do not come from the API server, which is slower with them than the webhook.
func TestLargeClustersAtOnce(t *testing.T) {
	const atOnce, rounds = 10, 4
	g := NewWithT(t)
	s := newScene(t, g)
	body := reviewOf(g, s.namespace, 223_000)
	g.Expect(len(body)).To(BeNumerically("~", 2_900_000, 200_000))
	g.Expect(s.flood(t, g, body, atOnce, rounds)).To(Succeed())
}

// Many requests of medium size at once do not exceed the memory limit either, and ordinary Clusters
// are stamped all the same. A machine that is slow does not answer all of the flood in time.
func TestManyMediumClustersAtOnce(t *testing.T) {
	const atOnce, rounds = 480, 3
	g := NewWithT(t)
	s := newScene(t, g)
	body := reviewOf(g, s.namespace, 18_000)
	g.Expect(len(body)).To(BeNumerically("~", 235_000, 15_000))
	t.Logf("of the flood: %v", s.flood(t, g, body, atOnce, rounds))
}

// flood sends a review from many callers at once, again and again. It expects that the Clusters of
// others are stamped meanwhile, and that the webhook stays within its memory limit. The error says
// that one of the reviews was not let through.
func (s scene) flood(t *testing.T, g Gomega, body []byte, atOnce, rounds int) error {
	g.Expect(env.Restart(ctx, webhookProcess)).To(Succeed())
	processes := env.Processes()
	webhook := processes[slices.IndexFunc(processes, func(p process.Status) bool { return p.Name == webhookProcess })]
	g.Expect(usage.ResetPeak(webhook.PID)).To(Succeed())

	url := "https://127.0.0.1:" + portOf(g, webhookProcess, "--webhook-port=")
	call := func(caller *http.Client, path string) error {
		response, err := caller.Post(url+path, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(response.Body).Decode(review); err != nil {
			return err
		}
		if review.Response == nil || !review.Response.Allowed || review.Response.UID != "large" {
			return fmt.Errorf("%s: %+v", path, review.Response)
		}
		return nil
	}
	// As from the API server, they share connections.
	caller := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer caller.CloseIdleConnections()
	var attack, others errgroup.Group
	for range atOnce {
		attack.Go(func() error {
			var failed error
			for range rounds {
				for _, path := range []string{"/stamp-cluster?timeout=3s", "/validate-cluster?timeout=3s"} {
					failed = cmp.Or(failed, call(caller, path))
				}
			}
			return failed
		})
	}
	others.Go(func() error {
		for i := range 20 {
			begin, cluster := time.Now(), fixture.Cluster(s.namespace, fmt.Sprintf("other-%d", i), "standard", s.classNamespace)
			if err := admin.Create(ctx, cluster); err != nil {
				return err
			}
			if cluster.Labels[stamp.ClassNameLabel] == "" {
				return fmt.Errorf("Cluster %s was let through without its stamp after %s", cluster.Name, time.Since(begin))
			}
		}
		return nil
	})
	g.Expect(others.Wait()).To(Succeed())
	failed := attack.Wait()
	memory, err := usage.MemoryOf(webhook.PID)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("the webhook held at most %.0f MiB", memory.Peak)
	g.Expect(memory.Peak).To(BeNumerically("<", webhookLimit*9/10))
	return failed
}
