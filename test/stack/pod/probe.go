package pod

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"

	"github.com/muster-fleet/muster/test/stack/poll"
)

// Check returns the probe as a condition. Kubelets verify no certificates, either.
func (p *Probe) Check() func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	return poll.Answers(client, fmt.Sprintf("%s://127.0.0.1:%d%s", p.Scheme, p.Port, p.Path))
}
