package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/page"
	"github.com/muster-fleet/muster/internal/view/source"
)

type viewOptions struct {
	*options
	port       int
	staleAfter time.Duration
}

func newView(common *options) *cobra.Command {
	o := &viewOptions{options: common}
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Show the same on a web page on this machine, kept up to date",
		Long: `Serve the view as a web page on this machine, kept up to date, and print its address.

The page is only for you: it has your rights and listens on 127.0.0.1, and its address
holds a random token. It is read-only, and stops with the command (Ctrl-C).`,
		Example: "  kubectl muster view\n  kubectl muster view -f dump.yaml",
		Args:    withUsage(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.addPictureTo(cmd)
	cmd.Flags().IntVar(&o.port, "port", 0, "The port to listen on; 0 means any free port.")
	addStaleAfter(cmd, &o.staleAfter)
	return cmd
}

func (o *viewOptions) run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		// It runs for hours on the user's machine, mostly idle.
		debug.SetGCPercent(40)
	}
	from, title, err := o.source(ctx)
	if err != nil {
		return program.Exit(2, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return program.Exit(2, err)
	}
	server := page.New(from, title, listener)
	fmt.Fprintf(o.Out, "http://%s%s\n", listener.Addr(), server.Path())
	return server.Serve(ctx, listener)
}

// source returns the source of the page's contents, and the page's title.
func (o *viewOptions) source(ctx context.Context) (page.Source, string, error) {
	if o.given() {
		reader, err := o.reader()
		if err != nil {
			return nil, "", err
		}
		scope := o.scope()
		scope.Bundles = true
		objects, err := source.Read(ctx, reader, scope)
		if err != nil {
			return nil, "", err
		}
		objects.StaleAfter = o.staleAfter
		return still{objects}, fmt.Sprintf("%s, as of %s", strings.Join(o.filenames, ", "), objects.Now.UTC().Format(time.RFC3339)), nil
	}
	from, err := o.client()
	if err != nil {
		return nil, "", err
	}
	follower, err := source.Follow(ctx, from, o.scope())
	if err != nil {
		return nil, "", err
	}
	title := "all namespaces"
	if namespace := o.scope().Namespace; namespace != "" {
		title = "namespace " + namespace
	}
	if raw, err := o.flags.ToRawKubeConfigLoader().RawConfig(); err == nil && raw.CurrentContext != "" {
		title = raw.CurrentContext + ", " + title
	}
	return &moving{follower, o.staleAfter}, title, nil
}

// moving is the source for a cluster, which changes.
type moving struct {
	*source.Follower
	staleAfter time.Duration
}

// Snapshot implements page.Source.
func (m *moving) Snapshot() *view.Objects {
	objects := m.Follower.Snapshot()
	objects.StaleAfter = m.staleAfter
	return objects
}

// still is the source for a file, which does not change.
type still struct{ objects *view.Objects }

// Snapshot implements page.Source.
func (s still) Snapshot() *view.Objects { return s.objects }

// Changed implements page.Source.
func (still) Changed() <-chan struct{} { return nil }

// Select implements page.Source.
func (still) Select(string) time.Time { return time.Time{} }
