// Package authority checks certificate authorities that users name, for admission and for the
// installer.
package authority

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Key is the key of a certificate authority in a ConfigMap or a Secret.
const Key = "ca.crt"

// Problem returns what to correct in CA certificates; empty if they are usable.
func Problem(text string, now time.Time) string {
	count := 0
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		count++
		if block.Type != "CERTIFICATE" {
			return fmt.Sprintf("%s holds a %s; put only certificates there", Key, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Sprintf("certificate %d of %s cannot be parsed; replace it", count, Key)
		}
		if now.After(certificate.NotAfter) {
			return fmt.Sprintf("certificate %d of %s (%s) expired on %s; replace it", count, Key, certificate.Subject, certificate.NotAfter.UTC().Format(time.DateOnly))
		}
	}
	if count == 0 {
		return Key + " holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----"
	}
	return ""
}
