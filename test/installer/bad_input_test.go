package installer

import (
	"fmt"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whatever is wrong is said, with what to do; set right, Fleet is installed.
func TestBadInput(t *testing.T) {
	g := fresh(t)
	with := func(changes map[string]string) map[string]string {
		data := credentials()
		for key, value := range changes {
			data[key] = value
		}
		return data
	}
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for i, test := range []struct {
		name   string
		secret map[string]string
		spec   string
		answer http.HandlerFunc
		reason string
		says   string
	}{
		{name: "an unknown version", spec: fromRepository("version: 9.9.9"), reason: "VersionUnknown", says: "has no version 9.9.9 of both fleet and fleet-crd"},
		{name: "an empty range", spec: fromRegistry("version: '>=9.0.0'"), reason: "VersionUnknown"},
		{name: "a wrong CA", secret: with(map[string]string{"ca.crt": authority(t)}), spec: fromRepository("version: 0.16.0"), reason: "RepositoryNotTrusted", says: "put its CA into the key ca.crt"},
		{name: "a wrong CA, registry", secret: with(map[string]string{"ca.crt": authority(t)}), spec: fromRegistry("version: 0.16.0"), reason: "RepositoryNotTrusted"},
		{name: "no CA", secret: with(map[string]string{"ca.crt": "none"}), spec: fromRepository("version: 0.16.0"), reason: "SecretUnusable"},
		{name: "a wrong password", secret: with(map[string]string{"password": "wrong"}), spec: fromRepository("version: 0.16.0"), reason: "RepositoryRefused", says: "401"},
		{name: "a wrong password, registry", secret: with(map[string]string{"password": "wrong"}), spec: fromRegistry("version: 0.16.0"), reason: "RepositoryRefused"},
		{name: "a web page", spec: fromRepository("version: 0.16.0"), answer: answer(200, "<!DOCTYPE html><html></html>"), reason: "RepositoryInvalid", says: "but a web page"},
		{name: "something else", spec: fromRepository("version: 0.16.0"), answer: answer(200, "entries: ["), reason: "RepositoryInvalid"},
		{name: "nothing there", spec: fromRepository("version: 0.16.0"), answer: answer(404, ""), reason: "RepositoryInvalid", says: "404"},
		{name: "no such chart", spec: fromRepository("version: 0.16.0"), answer: answer(200, "apiVersion: v1\nentries: {other: [{version: 1.0.0, urls: [a.tgz]}]}"), reason: "ChartMissing"},
		{name: "no such chart, registry", spec: `install: {version: 0.16.0, repository: "` + shelf.registry + `/nowhere", repositorySecretRef: {name: charts}}`, reason: "ChartMissing"},
		{name: "broken for now", spec: fromRepository("version: 0.16.0"), answer: answer(503, ""), reason: "RepositoryUnreachable", says: "503"},
		{name: "no such Secret", spec: `install: {version: 0.16.0, repository: "` + shelf.repository + `", repositorySecretRef: {name: none}}`, reason: "SecretUnusable", says: "does not exist"},
		{name: "a Secret elsewhere", spec: `install: {version: 0.16.0, repository: "` + shelf.repository + `", repositorySecretRef: {name: none, namespace: default}}`, reason: "SecretUnusable", says: "may not read it; give its ServiceAccount a Role"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			if test.answer != nil {
				defer shelf.answering(test.answer)()
			}
			if test.secret == nil {
				test.secret = credentials()
			}
			secret(g, "charts", test.secret)
			// What changes beside it has it tried at once.
			ask(g, fmt.Sprintf("{%s, cluster: {naming: {suffix: '-%d'}}}", test.spec, i))
			says(g, "FleetInstalled", metav1.ConditionFalse, test.reason, test.says)
			says(g, "Ready", metav1.ConditionFalse, test.reason)
		})
	}
	g.Expect(releases(g)).To(BeEmpty())
	secret(g, "charts", credentials())
	ask(g, "{"+fromRepository("version: 0.16.0")+"}")
	installed(g, "0.16.0")

	// Whatever is wrong with Fleet's installation, clusters are imported meanwhile.
	ask(g, "{"+fromRepository("version: 9.9.9")+"}")
	says(g, "FleetInstalled", metav1.ConditionFalse, "VersionUnknown", "Fleet 0.16.0 stays as it is")
	imports(g, "meanwhile")
}

// Who asks for Fleet where no installer runs hears that, and what to apply.
func TestMissing(t *testing.T) {
	g := fresh(t)
	g.Expect(env.Stop(ctx, "muster-installer")).To(Succeed())
	t.Cleanup(func() {
		g := NewWithT(t)
		g.Expect(env.Start(ctx, "muster-installer")).To(Succeed())
		says(g, "InstallerAvailable", metav1.ConditionTrue, "Available")
	})
	ask(g, "{install: {version: 0.16.0}}")
	says(g, "InstallerAvailable", metav1.ConditionFalse, "InstallerMissing", "kubectl apply -k manifests/installer")
	says(g, "Ready", metav1.ConditionFalse, "InstallerMissing")
	ask(g, "{}")
	g.Eventually(func(g Gomega) {
		g.Expect(meta.FindStatusCondition(config(g).Status.Conditions, "InstallerAvailable")).To(BeNil())
	}).Should(Succeed())
	ask(g, "{config: {featureGates: {}}}")
}
