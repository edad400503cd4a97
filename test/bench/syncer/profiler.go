package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// profiler saves profiles that programs serve to those who may read them.
type profiler struct {
	session *session
	token   string
}

func newProfiler(ctx context.Context, s *session) (*profiler, error) {
	if err := os.MkdirAll(s.profiles, 0o755); err != nil {
		return nil, err
	}
	if err := s.env.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: default, name: bench-profiler}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: bench-profiler}
rules: [{nonResourceURLs: [/debug/pprof/*], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bench-profiler}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bench-profiler}
subjects: [{kind: ServiceAccount, namespace: default, name: bench-profiler}]
`); err != nil {
		return nil, err
	}
	token, err := s.token(ctx, "default", "bench-profiler")
	return &profiler{session: s, token: token}, err
}

// token returns a token of a ServiceAccount.
func (s *session) token(ctx context.Context, namespace, name string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(4 * time.Hour / time.Second))}}
	err := s.admin.SubResource("token").Create(ctx, account, token)
	return token.Status.Token, err
}

// save writes a profile of a process into the directory of profiles; what is "heap", or
// "profile?seconds=5". Without such a directory it does nothing.
func (s *session) save(ctx context.Context, process, what, file string) error {
	if s.profiler == nil {
		return nil
	}
	server, client, err := s.profiler.reach(process)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/debug/pprof/"+what, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+s.profiler.token)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("profile of %s: %s: %s", process, response.Status, body)
	}
	return os.WriteFile(filepath.Join(s.profiles, file), body, 0o600)
}

// reach returns where a process serves its profiles, and a client for that.
func (p *profiler) reach(process string) (server string, _ *http.Client, _ error) {
	if process == apiserver {
		config, err := p.session.env.RESTConfig()
		if err != nil {
			return "", nil, err
		}
		client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
		return config.Host, client, err
	}
	for _, status := range p.session.env.Processes() {
		for _, arg := range status.Args {
			if port, ok := strings.CutPrefix(arg, "--diagnostics-address=:"); ok && status.Name == process {
				// Its certificate is its own: it is on this host, and has nothing secret to say.
				return "https://127.0.0.1:" + port, &http.Client{Transport: &http.Transport{
					TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
				}}, nil
			}
		}
	}
	return "", nil, fmt.Errorf("%s has no diagnostics address", process)
}
