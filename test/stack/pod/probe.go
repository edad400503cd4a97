package pod

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Check returns the probe as a condition. Kubelets verify no certificates, either.
func (p *Probe) Check() func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	url := fmt.Sprintf("%s://127.0.0.1:%d%s", p.Scheme, p.Port, p.Path)
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode < http.StatusBadRequest {
			return nil
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		return errors.Join(fmt.Errorf("%s: %s: %s", url, response.Status, strings.TrimSpace(string(body))), err)
	}
}
