package stack

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// identity is a ServiceAccount's token in a file, and a kubeconfig that reads it:
// what a pod finds under /var/run/secrets/kubernetes.io.
type identity struct {
	// server is where the API server is found: its own URL, or what stands before it.
	server    string
	namespace string
	account   string
	dir       string
	expires   time.Time
}

func (i *identity) kubeconfig() string { return filepath.Join(i.dir, "kubeconfig") }
func (i *identity) token() string      { return filepath.Join(i.dir, "token") }

// write makes the kubeconfig and a first token.
func (i *identity) write(ctx context.Context, plane *controlPlane) error {
	config := kubeconfigFor(i.server, plane.pki.caPEM(), &clientcmdapi.AuthInfo{TokenFile: i.token()})
	if err := writeKubeconfig(i.kubeconfig(), config); err != nil {
		return err
	}
	return poll.Until(ctx, fmt.Sprintf("ServiceAccount %s/%s", i.namespace, i.account), time.Minute, func(ctx context.Context) error {
		return i.renew(ctx, plane.client)
	})
}

func (i *identity) renew(ctx context.Context, client kubernetes.Interface) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	got, err := client.CoreV1().ServiceAccounts(i.namespace).CreateToken(ctx, i.account, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	i.expires = got.Status.ExpirationTimestamp.Time
	return files.WriteAtomically(i.token(), []byte(got.Status.Token))
}

// follow renews the token when most of its life is over, as the kubelet does.
func (i *identity) follow(ctx context.Context, client kubernetes.Interface) {
	for {
		pause := time.Until(i.expires) * 8 / 10
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(pause, 5*time.Second)):
		}
		// A failure is tried again in the next round, sooner as the end comes nearer.
		_ = i.renew(ctx, client)
	}
}
