package authority

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/authority/authoritytest"
)

func TestProblem(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	good, old := authoritytest.CA(t, now.Add(time.Hour)), authoritytest.CA(t, now.Add(-time.Hour))
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
