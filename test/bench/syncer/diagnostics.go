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

	"github.com/muster-fleet/muster/test/stack"
)

// diagnostics reads metrics and profiles, which programs serve to those who may read them.
type diagnostics struct {
	env    *stack.Stack
	token  string
	client *http.Client
}

func newDiagnostics(ctx context.Context, s *session) (*diagnostics, error) {
	if err := s.env.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: default, name: bench-diagnostics}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: bench-diagnostics}
rules: [{nonResourceURLs: [/metrics, /debug/pprof/*], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bench-diagnostics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bench-diagnostics}
subjects: [{kind: ServiceAccount, namespace: default, name: bench-diagnostics}]
`); err != nil {
		return nil, err
	}
	token, err := s.token(ctx, "default", "bench-diagnostics")
	return &diagnostics{env: s.env, token: token, client: &http.Client{Transport: &http.Transport{
		// Their certificates are their own: they are on this host, and have nothing secret to say.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}}, err
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
	if s.profiles == "" {
		return nil
	}
	profile, err := s.diagnostics.get(ctx, process, "/debug/pprof/"+what)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.profiles, file), profile, 0o600)
}

func (d *diagnostics) get(ctx context.Context, process, path string) ([]byte, error) {
	server, client, err := d.reach(process)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+d.token)
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s: %s: %s", path, process, response.Status, body)
	}
	return body, err
}

// reach returns where a process serves its diagnostics, and a client for that.
func (d *diagnostics) reach(process string) (server string, _ *http.Client, _ error) {
	if process == apiserver {
		config, err := d.env.RESTConfig()
		if err != nil {
			return "", nil, err
		}
		client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
		return config.Host, client, err
	}
	for _, status := range d.env.Processes() {
		for _, arg := range status.Args {
			if port, ok := strings.CutPrefix(arg, "--diagnostics-address=:"); ok && status.Name == process {
				return "https://127.0.0.1:" + port, d.client, nil
			}
		}
	}
	return "", nil, fmt.Errorf("%s has no diagnostics address", process)
}
