package integration

import (
	"bytes"
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

// largeReview returns the review of a Cluster of 2.9 MB that is created. Short labels take
// the most memory of all that the webhook reads.
func largeReview(g Gomega, namespace string) []byte {
	cluster := fixture.Cluster(namespace, "large", "standard", "")
	cluster.Labels = map[string]string{}
	for i := range 223_000 {
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
	g.Expect(len(body)).To(BeNumerically("~", 2_900_000, 200_000))
	return body
}

// One tenant creates as many large Clusters at once as they like: the webhook stays within its
// memory limit and lets them through, and what fails closed is not refused to others. The large
// requests do not come from the API server, which is slower with them than the webhook.
func TestLargeClustersAtOnce(t *testing.T) {
	const atOnce, rounds = 10, 4
	g := NewWithT(t)
	s := newScene(t, g)
	g.Expect(env.Restart(ctx, webhookProcess)).To(Succeed())
	processes := env.Processes()
	webhook := processes[slices.IndexFunc(processes, func(p process.Status) bool { return p.Name == webhookProcess })]
	g.Expect(usage.ResetPeak(webhook.PID)).To(Succeed())

	url := "https://127.0.0.1:" + portOf(g, webhookProcess, "--webhook-port=")
	body := largeReview(g, s.namespace)
	call := func(caller *http.Client, path string) error {
		response, err := caller.Post(url+path, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(response.Body).Decode(review); err != nil {
			return err
		}
		if review.Response == nil || !review.Response.Allowed || review.Response.UID != "large" {
			return fmt.Errorf("%s: %+v", path, review.Response)
		}
		return nil
	}
	var attack, others errgroup.Group
	for range atOnce {
		attack.Go(func() error {
			caller := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			defer caller.CloseIdleConnections()
			for range rounds {
				for _, path := range []string{"/stamp-cluster?timeout=3s", "/validate-cluster?timeout=3s"} {
					if err := call(caller, path); err != nil {
						return err
					}
				}
			}
			return nil
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
	g.Expect(attack.Wait()).To(Succeed())
	memory, err := usage.MemoryOf(webhook.PID)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("the webhook held at most %.0f MiB", memory.Peak)
	g.Expect(memory.Peak).To(BeNumerically("<", webhookLimit*9/10))
}
