package main

import (
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
)

// person is who runs a subcommand, with their own rights and not the syncer's.
type person struct {
	kubeconfig, context string
}

func (p *person) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&p.kubeconfig, "kubeconfig", "", "The kubeconfig to use; by default those that KUBECONFIG names, or ~/.kube/config.")
	fs.StringVar(&p.context, "context", "", "The context of the kubeconfig to use; its current one if empty.")
}

func (p *person) client() (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.context}).ClientConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}
