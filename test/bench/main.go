// Command bench measures what importing Clusters costs and how that grows with their number, and what
// admission costs, on a real API server, with both programs as they ship and nobody else's controllers.
// See docs/benchmarks.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// parts are what can be measured, each on a stack of its own.
var parts = []struct {
	name    string
	measure func(context.Context, *session) error
}{
	{"imports", measureImports},
	{"growth", measureGrowth},
	{"namespace", measureNamespace},
	{"charts", measureCharts},
	{"admission", measureAdmission},
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
		only := flag.String("only", "", "measure only these, with commas between them: "+strings.Join(partNames(), ", "))
		flag.Parse()
		err = run(ctx, *n, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func partNames() []string {
	var names []string
	for _, part := range parts {
		names = append(names, part.name)
	}
	return names
}

func run(ctx context.Context, n int, only string) error {
	wanted := map[string]bool{}
	for _, name := range partNames() {
		wanted[name] = only == ""
	}
	for _, name := range strings.FieldsFunc(only, func(r rune) bool { return r == ',' }) {
		if _, known := wanted[name]; !known {
			return fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(partNames(), ", "))
		}
		wanted[name] = true
	}
	var short []string
	for _, part := range parts {
		if !wanted[part.name] {
			continue
		}
		s, err := open(ctx, n)
		if err != nil {
			return err
		}
		err = part.measure(ctx, s)
		short = append(short, s.short...)
		if err := s.close(err); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if len(short) == 0 {
		short = []string{"nothing"}
	}
	fmt.Printf("\nshort: %s\n", strings.Join(short, "; "))
	return nil
}
