// Package pod plays the kubelet for a pod that is a process on this host: it translates the pod template of a
// Deployment, and keeps the mounted files up to date.
package pod

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// rewriter replaces values that a container's own mount and network namespaces would isolate: paths under mounts,
// and ports that are in use on this host.
type rewriter struct {
	mounts map[string]string
	ports  map[int]int
}

// arg rewrites `--flag=value`, or an argument that is a value itself.
func (r rewriter) arg(arg string) string {
	if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
		return flag + "=" + r.value(value)
	}
	return r.value(arg)
}

var address = regexp.MustCompile(`^((?:[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):)?(\d+)$`)

func (r rewriter) value(value string) string {
	longest := ""
	for mount := range r.mounts {
		under := value == mount || strings.HasPrefix(value, strings.TrimSuffix(mount, "/")+"/")
		if under && len(mount) > len(longest) {
			longest = mount
		}
	}
	if longest != "" {
		return r.mounts[longest] + strings.TrimPrefix(value, longest)
	}
	if match := address.FindStringSubmatch(value); match != nil {
		port, err := strconv.Atoi(match[2])
		if moved, ok := r.ports[port]; err == nil && ok {
			return match[1] + strconv.Itoa(moved)
		}
	}
	return value
}

var reference = regexp.MustCompile(`\$\$|\$\([A-Za-z_][A-Za-z0-9_.-]*\)`)

// expand resolves $(NAME) as the kubelet does: unknown names stay as written, and $$ becomes a dollar sign.
func expand(text string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := values[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

// Identity is a ServiceAccount's token in a file, and a kubeconfig that reads it. A pod has these under
// /var/run/secrets/kubernetes.io.
type Identity struct {
	// Server is the URL of the API server, or of a proxy in front of it.
	Server    string
	Namespace string
	Account   string
	Dir       string
	expires   time.Time
}

// Kubeconfig returns the path of the kubeconfig.
func (i *Identity) Kubeconfig() string { return filepath.Join(i.Dir, "kubeconfig") }
func (i *Identity) token() string      { return filepath.Join(i.Dir, "token") }

// Write writes the kubeconfig, which trusts this CA, and a first token.
func (i *Identity) Write(ctx context.Context, ca []byte, client kubernetes.Interface) error {
	config := pki.Kubeconfig(i.Server, ca, &clientcmdapi.AuthInfo{TokenFile: i.token()})
	if err := pki.WriteKubeconfig(i.Kubeconfig(), config); err != nil {
		return err
	}
	return poll.Until(ctx, fmt.Sprintf("ServiceAccount %s/%s", i.Namespace, i.Account), time.Minute, func(ctx context.Context) error {
		return i.renew(ctx, client)
	})
}

func (i *Identity) renew(ctx context.Context, client kubernetes.Interface) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	got, err := client.CoreV1().ServiceAccounts(i.Namespace).CreateToken(ctx, i.Account, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	i.expires = got.Status.ExpirationTimestamp.Time
	return files.WriteAtomically(i.token(), []byte(got.Status.Token))
}

// Follow renews the token when most of its lifetime is over, as the kubelet does.
func (i *Identity) Follow(ctx context.Context, client kubernetes.Interface) {
	for {
		pause := time.Until(i.expires) * 8 / 10
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(pause, 5*time.Second)):
		}
		// The next round tries again after a failure, and comes sooner as the end is nearer.
		_ = i.renew(ctx, client)
	}
}

// Check returns the probe as a condition. It verifies no certificate, like a kubelet.
func (p *Probe) Check() func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	return poll.Answers(client, fmt.Sprintf("%s://127.0.0.1:%d%s", p.Scheme, p.Port, p.Path))
}
