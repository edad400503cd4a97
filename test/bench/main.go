// Command bench measures what importing Clusters costs and how that grows with their number, and what
// admission costs, on a real API server, with both programs as shipped and no other controllers.
// See docs/internals/benchmarks.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// parts are the parts of the benchmark, each on a stack of its own.
var parts = map[string]func(context.Context, *session) error{
	"imports": measureImports, "growth": measureGrowth, "namespace": measureNamespace, "helm": measureHelm, "admission": measureAdmission,
	"rancher": measureRancher, "small": measureSmall,
}

func main() {
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 2 && os.Args[1] == childCommand {
		err = beChild(ctx, os.Args[2:])
	} else {
		n := flag.Int("n", 5000, "Clusters at the end; growth is measured at a tenth, two fifths and all of them")
		only := flag.String("only", "imports,growth,namespace,helm,admission,rancher,small", "what to measure")
		strict := flag.Bool("strict", false, "fail if a figure is short")
		flag.Parse()
		err = run(ctx, *n, strings.Split(*only, ","), *strict)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, n int, only []string, strict bool) error {
	var short []string
	for _, name := range only {
		measure, known := parts[name]
		if !known {
			return fmt.Errorf("-only: there is no %q", name)
		}
		s, err := open(ctx, n)
		if err != nil {
			return err
		}
		err = measure(ctx, s)
		short = append(short, s.short...)
		if err := s.close(err); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	fmt.Printf("\n%d figures are short: %s\n", len(short), strings.Join(short, "; "))
	if strict && len(short) > 0 {
		return errors.New("figures are short")
	}
	return nil
}
