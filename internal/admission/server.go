package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// What of bodies that are not read yet the server takes in from a connection, in bytes. The
// API server sends all its requests through one. If those that wait for their share of the
// budget could fill it, small ones would wait behind them, so it takes in what all streams
// together may send. More streams open another connection.
const (
	receivedPerStream = 64 << 10 // A client may send as much before it knows of another limit.
	maxStreams        = 60
	receivedInAll     = maxStreams * receivedPerStream // Go allows less than 4 MiB.
)

const (
	headerTimeout   = 32 * time.Second
	idleTimeout     = 90 * time.Second
	shutdownTimeout = time.Minute
)

// server is controller-runtime's webhook server with limits for HTTP/2, which that does not
// let one set.
type server struct {
	webhook.Server
	options webhook.Options
}

// NewServer returns the server of the webhooks, for a manager. Of the options it heeds Port,
// CertDir and TLSOpts.
func NewServer(options webhook.Options) webhook.Server {
	return &server{webhook.NewServer(options), options}
}

// Start serves until the context ends, then finishes what is in flight.
func (s *server) Start(ctx context.Context) error {
	certificate, err := certwatcher.New(filepath.Join(s.options.CertDir, "tls.crt"), filepath.Join(s.options.CertDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("reading the certificate of the webhooks: %w", err)
	}
	go func() {
		if err := certificate.Start(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "A renewed certificate is not served before the next start")
		}
	}()
	config := &tls.Config{NextProtos: []string{"h2"}, GetCertificate: certificate.GetCertificate}
	for _, option := range s.options.TLSOpts {
		option(config)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(s.options.Port)))
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	serving := newHTTPServer(ctx, s.WebhookMux())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := serving.Shutdown(ending); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Did not finish all admission requests")
		}
	}()
	if err := serving.Serve(tls.NewListener(listener, config)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	<-stopped
	return nil
}

func newHTTPServer(ctx context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     receivedPerStream,
			MaxReceiveBufferPerConnection: receivedInAll,
		},
	}
}
