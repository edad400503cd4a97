package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgumentsAreRewrittenOnlyWhereNamespacesDiffer(t *testing.T) {
	rewrite := rewriter{
		mounts: map[string]string{"/etc/muster": "/host/config", "/etc/muster/tls": "/host/tls", "/tmp": "/host/tmp"},
		ports:  map[int]int{9443: 19443, 8443: 8443, 9440: 19440},
	}
	for arg, want := range map[string]string{
		"--webhook-port=9443":                  "--webhook-port=19443",
		"--health-addr=:9440":                  "--health-addr=:19440",
		"--health-addr=0.0.0.0:9440":           "--health-addr=0.0.0.0:19440",
		"--health-addr=[::]:9440":              "--health-addr=[::]:19440",
		"--diagnostics-address=localhost:8443": "--diagnostics-address=localhost:8443",
		"9443":                                 "19443",
		"--server=https://example.com:9443":    "--server=https://example.com:9443",
		"--concurrency=10":                     "--concurrency=10",
		"--timeout=9443s":                      "--timeout=9443s",
		"--cert-dir=/etc/muster/tls":           "--cert-dir=/host/tls",
		"--cert=/etc/muster/tls/tls.crt":       "--cert=/host/tls/tls.crt",
		"--config=/etc/muster/config.yaml":     "--config=/host/config/config.yaml",
		"--other=/etc/musterly":                "--other=/etc/musterly",
		"/tmp/scratch":                         "/host/tmp/scratch",
		"--leader-elect":                       "--leader-elect",
		"--feature-gates=A=true,B=false":       "--feature-gates=A=true,B=false",
	} {
		if diff := cmp.Diff(want, rewrite.arg(arg)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", arg, diff)
		}
	}
}

func TestReferencesExpandAsInAPod(t *testing.T) {
	values := map[string]string{"NAME": "one", "EMPTY": ""}
	for text, want := range map[string]string{
		"--name=$(NAME)":    "--name=one",
		"$(NAME)-$(NAME)":   "one-one",
		"$(UNKNOWN)":        "$(UNKNOWN)",
		"$$(NAME)":          "$(NAME)",
		"[$(EMPTY)]":        "[]",
		"costs $5 or $NAME": "costs $5 or $NAME",
	} {
		if got := expand(text, values); got != want {
			t.Errorf("expand(%q) = %q, want %q", text, got, want)
		}
	}
}
