package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/program"
)

func TestSyncerUser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ account, namespace, file, want, fails string }{
		"environment":      {account: "muster-syncer", namespace: "muster-system", file: file, want: "system:serviceaccount:muster-system:muster-syncer"},
		"file":             {account: "other", file: file, want: "system:serviceaccount:from-file:other"},
		"neither":          {account: "muster-syncer", file: file + "-none", fails: "set POD_NAMESPACE, or run in a pod"},
		"no account":       {namespace: "muster-system", file: file, fails: "--syncer-service-account"},
		"a whole username": {account: "system:serviceaccount:a:b", namespace: "muster-system", file: file, fails: "--syncer-service-account"},
		"no namespace":     {account: "muster-syncer", namespace: "a:b", file: file, fails: "POD_NAMESPACE"},
	} {
		_, got, err := syncerUser(test.account, test.namespace, test.file)
		if got != test.want || (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestVersion(t *testing.T) {
	if err := run(t.Context(), []string{"--version"}); !errors.Is(err, program.ErrAnswered) {
		t.Error(err)
	}
}
