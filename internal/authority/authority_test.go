package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

func caUntil(t *testing.T, until time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestProblem(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	good, old := caUntil(t, now.Add(time.Hour)), caUntil(t, now.Add(-time.Hour))
	for name, test := range map[string]struct{ text, want string }{
		"good":              {text: good},
		"two good":          {text: "# a comment\n" + good + good},
		"nothing":           {want: "holds no certificate in PEM"},
		"no PEM":            {text: "hello", want: "holds no certificate in PEM"},
		"a key":             {text: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", want: "holds a PRIVATE KEY; put only certificates there"},
		"broken":            {text: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", want: "certificate 1 of ca.crt cannot be parsed"},
		"expired":           {text: old, want: "certificate 1 of ca.crt (CN=fleet) expired on 2029-12-31; replace it"},
		"the second is not": {text: good + old, want: "certificate 2 of ca.crt (CN=fleet) expired"},
	} {
		if got := Problem(test.text, now); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
