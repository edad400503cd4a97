package program

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/muster-fleet/muster/internal/version"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		stdout string
		want   error
	}{
		"nothing asked": {args: []string{"--other=1", "rest"}},
		"version":       {args: []string{"--version"}, stdout: "some program " + version.Get().String() + "\n", want: ErrAnswered},
		"among others":  {args: []string{"rest", "--version", "--other=1"}, stdout: "some program " + version.Get().String() + "\n", want: ErrAnswered},
		"no":            {args: []string{"--version=false"}},
		"help":          {args: []string{"--version", "--help"}, want: pflag.ErrHelp},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			fs := pflag.NewFlagSet("some program", pflag.ContinueOnError)
			fs.SetOutput(&stderr)
			fs.String("other", "", "")
			if err := Parse(fs, test.args, &stdout); !errors.Is(err, test.want) || stdout.String() != test.stdout {
				t.Errorf("%v, %q; want %v, %q", err, stdout.String(), test.want, test.stdout)
			}
		})
	}
}

func TestAnnounce(t *testing.T) {
	var logged string
	announce(funcr.New(func(_, line string) { logged += line }, funcr.Options{}), "some program")
	for _, want := range []string{`"msg"="Starting some program"`, `"version"="` + version.Get().Version + `"`, `"revision"=`, `"date"=`, `"go"="` + runtime.Version() + `"`} {
		if !strings.Contains(logged, want) {
			t.Errorf("%s is not in %s", want, logged)
		}
	}
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "muster_build_info" {
			return
		}
	}
	t.Error("there is no metric muster_build_info")
}
