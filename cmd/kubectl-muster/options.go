package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/version"
	"github.com/muster-fleet/muster/internal/view/draw"
	"github.com/muster-fleet/muster/internal/view/source"
)

// options are the flags that commands share.
type options struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
	// printing are kubectl's formats for -o, with their flags.
	printing *genericclioptions.PrintFlags
	files
	// everywhere overrides the namespace of the kubeconfig. It is the default of commands that look at many
	// Clusters.
	everywhere bool
	color      string
	// through, if not nil, wraps the reader of a file.
	through func(client.Reader) client.Reader
	// standIn, if not nil, is used instead of a cluster.
	standIn client.WithWatch
}

func newOptions(streams genericiooptions.IOStreams) *options {
	flags := genericclioptions.NewConfigFlags(true)
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.UserAgent = "kubectl-muster/" + version.Get().Version
		config.QPS = -1 // The API server's own fairness is enough.
		return config
	}
	printing := genericclioptions.NewPrintFlags("")
	printing.OutputFormat = nil // Each command has its own -o.
	printing.OutputFlagSpecified = func() bool { return true }
	return &options{IOStreams: streams, flags: flags, color: "auto", printing: printing}
}

// addTo adds the flags of all commands.
func (o *options) addTo(root *cobra.Command) {
	fs := root.PersistentFlags()
	o.flags.AddFlags(fs)
	// An error here means that the flag does not exist, which the line above excludes.
	_ = root.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.names(cmd, corev1.SchemeGroupVersion.WithKind("NamespaceList")), cobra.ShellCompDirectiveNoFileComp
	})
	printing := &cobra.Command{} // It collects the flags that kubectl would add to each command.
	o.printing.AddFlags(printing)
	fs.AddFlagSet(printing.Flags())
	fs.StringVar(&o.color, "color", "auto", "When to color the signs: auto (on a terminal, unless NO_COLOR is set), always or never. Without color, the signs have the same information.")
}

// addPictureTo adds the flags of commands that show a cluster, or files from one.
func (o *options) addPictureTo(cmd *cobra.Command) {
	o.addFilesTo(cmd, "Read this output of kubectl get -o yaml instead of a cluster.")
	cmd.Flags().BoolVarP(&o.everywhere, "all-namespaces", "A", false, "Look at all namespaces. This is the default unless -n is given.")
}

// scope returns the selection of Clusters.
func (o *options) scope() source.Scope {
	if o.everywhere {
		return source.Scope{}
	}
	return source.Scope{Namespace: *o.flags.Namespace}
}

// namespace returns the namespace to search first for a name without one.
func (o *options) namespace() string {
	if o.given() {
		return *o.flags.Namespace
	}
	namespace, _, err := o.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "" // A later read reports what is wrong with the kubeconfig.
	}
	return namespace
}

// key returns the key of an object that is named as what, or as NAMESPACE/what.
func (o *options) key(argument, what string) (client.ObjectKey, error) {
	key := client.ObjectKey{Namespace: o.namespace(), Name: argument}
	if namespace, name, found := strings.Cut(argument, "/"); found {
		key = client.ObjectKey{Namespace: namespace, Name: name}
	}
	if key.Namespace == "" || key.Name == "" {
		return key, program.Exit(2, fmt.Errorf("%q is neither %s nor NAMESPACE/%s", argument, what, what))
	}
	return key, nil
}

// reader returns a reader of the files or of the cluster.
func (o *options) reader() (client.Reader, error) {
	if !o.given() {
		return o.client()
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	paths, err := o.paths()
	if err != nil {
		return nil, err
	}
	file, err := source.Open(scheme, paths, o.In)
	if err != nil {
		return nil, program.Exit(2, err)
	}
	if o.through != nil {
		return o.through(file), nil
	}
	return file, nil
}

// config returns how the API server is reached.
func (o *options) config() (*rest.Config, error) {
	config, err := o.flags.ToRESTConfig()
	if err != nil {
		return nil, program.Exit(2, err)
	}
	return config, nil
}

// server returns the host and port of the API server; empty if files are read.
func (o *options) server() string {
	if o.given() || o.standIn != nil {
		return ""
	}
	config, err := o.config()
	if err != nil {
		return "" // A read reports this.
	}
	at, err := url.Parse(config.Host)
	if err != nil || at.Host == "" {
		return config.Host
	}
	if at.Port() == "" {
		return net.JoinHostPort(at.Hostname(), "443")
	}
	return at.Host
}

// client returns a client with the rights of the person who runs the command.
func (o *options) client() (client.WithWatch, error) {
	if o.standIn != nil {
		return o.standIn, nil
	}
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	result, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, program.Exit(2, err)
	}
	return result, nil
}

// style returns how trees are drawn on this output.
func (o *options) style() (draw.Style, error) {
	file, isPerson := isTerminal(o.Out)
	result := draw.Style{}
	switch o.color {
	case "auto":
		result.Color = isPerson && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	case "always":
		result.Color = true
	case "never":
	default:
		return result, program.Exit(2, fmt.Errorf("--color: %q is neither auto, always nor never", o.color))
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		result.Width = columns
	} else if isPerson {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil {
			result.Width = width
		}
	}
	return result, nil
}

func isTerminalFile(file *os.File) bool {
	return term.IsTerminal(int(file.Fd()))
}

// isTerminal reports whether text is written to a terminal.
func isTerminal(to io.Writer) (file *os.File, ok bool) {
	file, ok = to.(*os.File)
	return file, ok && isTerminalFile(file)
}

// again writes a changed text: on a terminal in place of the last one, otherwise below it.
func (o *options) again(text string) {
	if _, isPerson := isTerminal(o.Out); isPerson {
		fmt.Fprint(o.Out, "\x1b[H\x1b[2J\x1b[3J", text)
	} else {
		fmt.Fprintln(o.Out, text)
	}
}

// completeNames completes the names of ClusterClasses and Clusters.
func (o *options) completeNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return append(o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterClassList")), o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterList"))...), cobra.ShellCompDirectiveNoFileComp
}

// completeClusters completes the name of a Cluster.
func (o *options) completeClusters(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterList")), cobra.ShellCompDirectiveNoFileComp
}

// completeTrace completes the name of a Bundle or HelmChartProxy, then the name of a Cluster.
func (o *traceOptions) completeTrace(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		bundles := slices.DeleteFunc(o.names(cmd, fleetv1.SchemeGroupVersion.WithKind("BundleList")), func(name string) bool {
			return plan.MayBeOurs(name[strings.Index(name, "/")+1:])
		})
		return append(bundles, o.names(cmd, addonsv1.GroupVersion.WithKind("HelmChartProxyList"))...), cobra.ShellCompDirectiveNoFileComp
	}
	return o.completeClusters(cmd, args[1:], "")
}

// names lists objects for a completion, which must be fast and cannot report an error.
func (o *options) names(cmd *cobra.Command, kind schema.GroupVersionKind) []string {
	reader, err := o.reader()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second) // A shell stands still meanwhile; a context has no event before its end.
	defer cancel()
	if err := reader.List(ctx, list, client.InNamespace(o.scope().Namespace), client.Limit(500)); err != nil {
		return nil
	}
	var names []string
	for i := range list.Items {
		names = append(names, strings.TrimPrefix(list.Items[i].Namespace+"/"+list.Items[i].Name, "/"))
	}
	return names
}
