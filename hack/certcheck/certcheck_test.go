// Package certcheck reads the manifests in certs/, and those of components, as cert-manager would: into its types, and
// without overlooking a field that these do not have. Fields that are misspelled are dropped
// by an API server with a warning at most, and a certificate lasts as long as the default.
package certcheck

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of some files.
type manifests struct {
	certificates []*certmanagerv1.Certificate
	issuers      []*certmanagerv1.Issuer
}

// add decodes every document of a file.
func (m *manifests) add(content []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.addDocument(document); err != nil {
			return err
		}
	}
}

func (m *manifests) addDocument(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	if kind.APIVersion != certmanagerv1.SchemeGroupVersion.String() {
		return fmt.Errorf("%s %s is none of cert-manager's", kind.APIVersion, kind.Kind)
	}
	switch kind.Kind {
	case certmanagerv1.CertificateKind:
		certificate := &certmanagerv1.Certificate{}
		m.certificates = append(m.certificates, certificate)
		return decode(document, certificate)
	case certmanagerv1.IssuerKind:
		issuer := &certmanagerv1.Issuer{}
		m.issuers = append(m.issuers, issuer)
		return decode(document, issuer)
	default:
		return fmt.Errorf("nobody expects a %s", kind.Kind)
	}
}

// decode minds the case of fields, as API servers do, and fields that are there twice.
func decode(document []byte, into any) error {
	content, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(content, into)
	return errors.Join(append(strict, err)...)
}

func TestShippedCertificates(t *testing.T) {
	files, err := filepath.Glob("../../certs/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../manifests/registrar/certificate.yaml", "../../manifests/installer/certificate.yaml")
	var all manifests
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := all.add(content); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if len(all.certificates) == 0 || len(all.issuers) == 0 {
		t.Fatalf("there are %d Certificates and %d Issuers", len(all.certificates), len(all.issuers))
	}
	issuers := map[string]bool{}
	for _, issuer := range all.issuers {
		issuers[issuer.Namespace+"/"+issuer.Name] = true
	}
	for _, certificate := range all.certificates {
		ref := certificate.Spec.IssuerRef
		if ref.Kind != certmanagerv1.IssuerKind || !issuers[certificate.Namespace+"/"+ref.Name] {
			t.Errorf("Certificate %s: no %s %s issues it", certificate.Name, ref.Kind, ref.Name)
		}
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	const certificate = "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: one}\nspec: {secretName: one, issuerRef: {name: ca}}\n"
	if err := (&manifests{}).add([]byte(certificate)); err != nil {
		t.Fatal(err)
	}
	for old, wrong := range map[string]string{
		"secretName: one":         "secretName: one, renewbefore: 1h",
		"issuerRef: {name: ca}":   "issuerRef: {name: ca}, duration: 90 days",
		"metadata: {name: one}":   "metadata: {name: one, annotation: {a: b}}",
		"kind: Certificate":       "kind: Certifcate",
		"cert-manager.io/v1\n":    "cert-manager.io/v1alpha2\n",
		"metadata: {name: one}\n": "metadata: {name: one}\nmetadata: {name: two}\n",
	} {
		if err := (&manifests{}).add([]byte(strings.Replace(certificate, old, wrong, 1))); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
