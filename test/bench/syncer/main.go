// Command syncer measures what importing Clusters costs and how that grows with their
// number, on a real API server, with both programs as they ship and nobody else's
// controllers. See docs/benchmarks.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/report"
)

// specified is the number of Clusters that the bars of memory are for.
const specified = 5000

type options struct {
	n                    int
	burst, steady        int
	rate                 float64
	namespaces, classes  int
	workers, concurrency int
	only                 string
	profiles             string
	dir                  string
	output               string
	markdown             bool
	download             string
}

func (o *options) addTo(flags *flag.FlagSet) {
	flags.IntVar(&o.n, "n", specified, "Clusters at the end; the growth is measured at a tenth, two fifths and all of them")
	flags.IntVar(&o.burst, "burst", 0, "Clusters to import at once (two fifths of -n if 0)")
	flags.IntVar(&o.steady, "steady", 0, "Clusters to import at a rate (a fifth of -n if 0)")
	flags.Float64Var(&o.rate, "rate", 25, "imports per second when growth is measured at a rate")
	flags.IntVar(&o.namespaces, "namespaces", 10, "namespaces that the Clusters are in")
	flags.IntVar(&o.classes, "classes", 4, "classes that the Clusters are of")
	flags.IntVar(&o.workers, "workers", 10, "imports at a time of the bare client; the syncer's --cluster-concurrency as shipped")
	flags.IntVar(&o.concurrency, "concurrency", 8, "requests at a time of whoever makes the Clusters")
	flags.StringVar(&o.only, "only", "", "measure only these, with commas between them: "+strings.Join(tableNames(), ", "))
	flags.StringVar(&o.profiles, "pprof", "", "save profiles of the syncer in this directory")
	flags.StringVar(&o.dir, "dir", "", "keep the files and logs of the stack in this directory; use with -only")
	flags.StringVar(&o.output, "output", filepath.Join(".dev", "bench.json"), "where to write the figures as JSON")
	flags.StringVar(&o.download, "download", string(addonsv1.DownloadManager), "who downloads the chart in the table charts: Manager, or Agent")
	flags.BoolVar(&o.markdown, "markdown", false, "print the reports in these files for a page, and measure nothing")
}

func main() {
	var o options
	o.addTo(flag.CommandLine)
	flag.Parse()
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, args []string) error {
	if o.markdown {
		return printMarkdown(args)
	}
	if len(args) == 2 && args[0] == fillCommand {
		return fill(ctx, args[1])
	}
	if o.burst == 0 {
		o.burst = o.n * 2 / 5
	}
	if o.steady == 0 {
		o.steady = o.n / 5
	}
	r := report.New("syncer")
	r.Settings = map[string]string{
		"n": fmt.Sprint(o.n), "burst": fmt.Sprint(o.burst), "steady": fmt.Sprint(o.steady), "rate": fmt.Sprint(o.rate),
		"namespaces": fmt.Sprint(o.namespaces), "classes": fmt.Sprint(o.classes), "workers": fmt.Sprint(o.workers),
		"only": o.only, "download": o.download,
	}
	chosen, err := o.parts()
	if err != nil {
		return err
	}
	for _, part := range chosen {
		tables, err := part.measure(ctx, o)
		// What was measured before something failed is worth having.
		for _, table := range tables {
			r.Add(table)
			table.Print(os.Stdout)
		}
		if err := r.Write(o.output); err != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(part.tables, ", "), err)
		}
	}
	fmt.Printf("\n%s, %s; written to %s\n", verdict(r), r.Elapsed, o.output)
	return nil
}

func verdict(r *report.Report) string {
	var short []string
	for _, table := range r.Tables {
		for _, figure := range table.Figures {
			if figure.Verdict == report.Short {
				short = append(short, figure.Name)
			}
		}
	}
	if len(short) == 0 {
		return "every bar is reached"
	}
	return "short: " + strings.Join(short, "; ")
}

func printMarkdown(files []string) error {
	for _, file := range files {
		r, err := report.Read(file)
		if err != nil {
			return err
		}
		r.Markdown(os.Stdout)
	}
	return nil
}
