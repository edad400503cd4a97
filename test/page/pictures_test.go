package page

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// pictures are the pictures of the page that the documentation shows, with their addresses on it.
var pictures = map[string]string{"overview": "", "cluster": "cluster/payments/prod-07"}

// TestPictures compares the pages of a fixed fleet with those from which the pictures were taken, by the sums beside
// the pictures. With MUSTER_SCREENSHOTS, it takes the pictures and writes the sums into that folder.
func TestPictures(t *testing.T) {
	images, err := filepath.Abs(root + "/docs/guides/images")
	if err != nil {
		t.Fatal(err)
	}
	there, err := filepath.Glob(images + "/*.png")
	if err != nil || len(there) != len(pictures) {
		t.Errorf("%v are there, want a picture for each of %v: %v", there, pictures, err)
	}
	t.Chdir(t.TempDir()) // The page shows the name of the file.
	if err := os.WriteFile("fleet.json", fleet(t), 0o600); err != nil {
		t.Fatal(err)
	}
	url := view(t, "-f", "fleet.json")
	to := os.Getenv("MUSTER_SCREENSHOTS")
	for name, path := range pictures {
		sum := sumOf(t, url, path)
		if to == "" {
			if was, err := os.ReadFile(filepath.Join(images, name+".sha256")); err != nil || string(was) != sum {
				t.Errorf("%s.png was taken from another page; make screenshots takes it again (%v)", name, err)
			}
			continue
		}
		tab := newTab(t)
		tab.size(1400, 800)
		tab.open(url + path)
		image, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		tab.clean()
		if err := os.WriteFile(filepath.Join(to, name+".png"), image, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name+".sha256"), []byte(sum), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// number is a hash of the page with its token.
var number = regexp.MustCompile(`<data id="number".*`)

// sumOf returns the SHA-256 of a page and its style. The token in the address differs each time, and is left out.
func sumOf(t *testing.T, url, path string) string {
	t.Helper()
	token := url[strings.Index(url[len("http://"):], "/")+len("http://"):]
	hash := sha256.New()
	for _, path := range []string{path, "page.css"} {
		response, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, response.Status, err)
		}
		_, _ = io.WriteString(hash, number.ReplaceAllString(strings.ReplaceAll(string(body), token, "/"), ""))
	}
	return fmt.Sprintf("%x\n", hash.Sum(nil))
}

type object = map[string]any

// fleet returns 360 Clusters, as kubectl get prints them at a fixed time: most are ready, some wait, and a few have a
// problem.
func fleet(t *testing.T) []byte {
	t.Helper()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	var items []any
	add := func(group, kind, namespace, name string, fields object) {
		metadata := object{"namespace": namespace, "name": name, "uid": namespace + "-" + name, "creationTimestamp": ago(0)}
		for _, key := range []string{"annotations", "labels", "ownerReferences"} {
			if value, found := fields[key]; found {
				metadata[key] = value
				delete(fields, key)
			}
		}
		fields["apiVersion"], fields["kind"], fields["metadata"] = group, kind, metadata
		items = append(items, fields)
	}
	const (
		muster, capi, rancher = "addons.cluster.x-k8s.io/v1alpha1", "cluster.x-k8s.io/v1beta2", "fleet.cattle.io/v1alpha1"
		label                 = "fleet.addons.cluster.x-k8s.io"
	)
	add(muster, "FleetAddonConfig", "", "fleet-addon-config", object{"spec": object{}})
	add("v1", "Namespace", "", "classes", object{})
	for _, class := range []string{"edge", "standard"} {
		labels := object{"clusterclass-name." + label: class, "clusterclass-namespace." + label: "classes"}
		group := func(namespace, name string) {
			add(rancher, "ClusterGroup", namespace, name, object{"labels": object{"app.kubernetes.io/managed-by": "muster"}, "spec": object{"selector": object{"matchLabels": labels}}})
		}
		add(capi, "ClusterClass", "classes", class, object{})
		group("classes", class)
		for _, bundle := range []string{"cni", "monitoring"} {
			add(rancher, "Bundle", "classes", class+"-"+bundle, object{"spec": object{"targets": []any{object{"clusterSelector": object{"matchLabels": labels}}}}})
		}
		teams, each := []string{"data", "identity", "payments", "search"}, 30
		if class == "edge" {
			teams, each = []string{"stores-east", "stores-north", "stores-west"}, 80
		}
		for _, team := range teams {
			add("v1", "Namespace", "", team, object{})
			group(team, class+".classes")
			add(rancher, "BundleNamespaceMapping", "classes", team, object{
				"labels": object{"app.kubernetes.io/managed-by": "muster"}, "bundleSelector": object{},
				"namespaceSelector": object{"matchLabels": object{"kubernetes.io/metadata.name": team}},
			})
			for i := range each {
				name := fmt.Sprintf("prod-%02d", i)
				imported := object{"type": "FleetImported", "status": "True", "reason": "Imported", "lastTransitionTime": ago(80 * 24 * time.Hour)}
				seen, display := 40*time.Second, object{"readyBundles": "2/2"}
				isFailing := team == "payments" && i == 7
				switch {
				case isFailing:
					display = object{"state": "NotReady", "readyBundles": "1/2"}
				case i%27 == 26:
					imported["status"], imported["reason"], imported["message"] = "False", "WaitingForControlPlane", "the control plane is not initialized yet"
				case class == "edge" && i%31 == 17:
					seen = 3 * time.Hour // Its agent is silent.
				}
				all := maps.Clone(labels)
				all["app.kubernetes.io/managed-by"] = "muster"
				add(capi, "Cluster", team, name, object{
					"annotations": object{label + "/cluster-name": name, label + "/owned-by": "fleet-addon-config"}, "labels": all,
					"spec":   object{"topology": object{"classRef": object{"namespace": "classes", "name": class}}},
					"status": object{"conditions": []any{imported}},
				})
				if imported["status"] == "False" {
					continue
				}
				inFleet := "cluster-" + team + "-" + name
				add(rancher, "Cluster", team, name, object{
					"annotations": object{label + "/imported-from": name}, "labels": all,
					"ownerReferences": []any{object{"apiVersion": capi, "kind": "Cluster", "name": name, "uid": team + "-" + name}},
					"spec":            object{}, "status": object{"namespace": inFleet, "agent": object{"lastSeen": ago(seen)}, "display": display},
				})
				for _, bundle := range []string{"cni", "monitoring"} {
					status := object{"ready": true, "nonModified": true, "resourceCounts": object{"ready": 6, "desiredReady": 6}}
					if isFailing && bundle == "cni" {
						status["ready"], status["resourceCounts"] = false, object{"ready": 5, "desiredReady": 6}
						status["nonReadyStatus"] = []any{object{
							"kind": "DaemonSet", "namespace": "kube-system", "name": "calico-node",
							"summary": object{"state": "in-progress", "message": []any{"Available: 1/3"}},
						}}
					}
					add(rancher, "BundleDeployment", inFleet, class+"-"+bundle, object{
						"labels": object{
							"fleet.cattle.io/bundle-name": class + "-" + bundle, "fleet.cattle.io/bundle-namespace": "classes",
							"fleet.cattle.io/cluster": name, "fleet.cattle.io/cluster-namespace": team,
						},
						"spec":   object{"deploymentID": "1", "stagedDeploymentID": "1"},
						"status": status,
					})
					status["appliedDeploymentID"] = "1"
				}
			}
		}
	}
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
