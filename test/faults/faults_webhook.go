package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	system     = "muster-system"
	servingTLS = "muster-webhook-tls"
	authority  = "muster-ca"
	// unseen is how long the death of a replica may be unknown to those who route to it.
	unseen = 3 * time.Second
)

// killOneWebhook kills one of two replicas. Until that is known, and for what was in
// flight, a webhook may not be reached.
func killOneWebhook(ctx context.Context, r *run) (time.Time, error) {
	victim := []string{webhook, secondWebhook}[r.rng.IntN(2)]
	r.kubelet.hold(victim)
	defer r.kubelet.release(victim)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, victim); err != nil {
		return time.Time{}, err
	}
	if err := sleep(ctx, unseen); err != nil {
		return time.Time{}, err
	}
	// From here on the other one answers everything.
	r.webhooksDown.Store(false)
	err := sleep(ctx, r.between(time.Second, 4*time.Second))
	return time.Now(), err
}

// killBothWebhooks leaves no replica for a while.
func killBothWebhooks(ctx context.Context, r *run) (time.Time, error) {
	r.kubelet.hold(webhook, secondWebhook)
	defer r.kubelet.release(webhook, secondWebhook)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, webhook, secondWebhook); err != nil {
		return time.Time{}, err
	}
	if err := sleep(ctx, r.between(2*time.Second, 6*time.Second)); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// changeClassLabels lets the component that labels Clusters in the API server come and go
// while no webhook runs.
func changeClassLabels(ctx context.Context, r *run) (time.Time, error) {
	if err := r.env.StartComponent(ctx, "class-labels"); err != nil {
		return time.Time{}, err
	}
	if _, err := killBothWebhooks(ctx, r); err != nil {
		return time.Time{}, err
	}
	_, err := r.env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
	return time.Now(), err
}

// expireCertificate lets the webhook serve a certificate that has expired while
// cert-manager was down, and then starts cert-manager.
func expireCertificate(ctx context.Context, r *run) (time.Time, error) {
	r.kubelet.hold(certManager)
	defer r.kubelet.release(certManager)
	if err := r.kill(ctx, certManager); err != nil {
		return time.Time{}, err
	}
	expired, err := r.expired(ctx)
	if err != nil {
		return time.Time{}, err
	}
	r.webhooksDown.Store(true)
	secret := &corev1.Secret{}
	if err := r.admin.Get(ctx, client.ObjectKey{Namespace: system, Name: servingTLS}, secret); err != nil {
		return time.Time{}, err
	}
	before := secret.DeepCopy()
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = expired.certificate, expired.key
	if err := r.admin.Patch(ctx, secret, client.MergeFrom(before)); err != nil {
		return time.Time{}, err
	}
	// A connection that was made before lives on: it takes a new one to notice.
	if err := poll.Until(ctx, "new connections to be shown the expired certificate", time.Minute, func(ctx context.Context) error {
		r.env.CutConnections(webhook)
		probe := r.forbidden()
		err := r.author.Create(ctx, probe, client.DryRunAll)
		if judge(err) != closed {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	}); err != nil {
		return time.Time{}, err
	}
	err = sleep(ctx, r.between(time.Second, 5*time.Second))
	return time.Now(), err
}

// removeCertManager makes it as it is where cert-manager is yet to be installed:
// there is no certificate, so that no webhook starts, and nobody to trust. Then
// cert-manager comes.
func removeCertManager(ctx context.Context, r *run) (time.Time, error) {
	r.kubelet.hold(certManager, webhook, secondWebhook)
	defer r.kubelet.release(certManager)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, certManager, webhook, secondWebhook); err != nil {
		return time.Time{}, err
	}
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = system, servingTLS
	if err := r.admin.Delete(ctx, secret); err != nil {
		return time.Time{}, err
	}
	if err := r.distrust(ctx); err != nil {
		return time.Time{}, err
	}
	if err := sleep(ctx, r.between(2*time.Second, 6*time.Second)); err != nil {
		return time.Time{}, err
	}
	over := time.Now()
	r.kubelet.release(certManager)
	// A pod waits for the Secret it mounts.
	for _, replica := range []string{webhook, secondWebhook} {
		if err := r.env.Start(ctx, replica); err != nil {
			return over, err
		}
		r.kubelet.release(replica)
	}
	return over, nil
}

// distrust takes the CA out of the webhook configurations.
func (r *run) distrust(ctx context.Context) error {
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := r.admin.Get(ctx, client.ObjectKey{Name: "muster-mutating-webhook"}, mutating); err != nil {
		return err
	}
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].ClientConfig.CABundle = nil
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := r.admin.Get(ctx, client.ObjectKey{Name: "muster-validating-webhook"}, validating); err != nil {
		return err
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.CABundle = nil
	}
	return errors.Join(r.admin.Update(ctx, mutating), r.admin.Update(ctx, validating))
}

// pair is a certificate and its key as PEM.
type pair struct{ certificate, key []byte }

// expired makes a serving certificate as cert-manager would, of yesterday.
func (r *run) expired(ctx context.Context) (pair, error) {
	secret := &corev1.Secret{}
	if err := r.admin.Get(ctx, client.ObjectKey{Namespace: system, Name: authority}, secret); err != nil {
		return pair{}, err
	}
	ca, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return pair{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	now := time.Now()
	certificate, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{Organization: []string{"muster-fleet"}},
		NotBefore: now.Add(-48 * time.Hour), NotAfter: now.Add(-24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"muster-webhook.muster-system.svc", "muster-webhook.muster-system.svc.cluster.local"},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return pair{}, err
	}
	plain, err := x509.MarshalPKCS8PrivateKey(key)
	return pair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: plain}),
	}, err
}

// answers tells whether the webhooks judge as they should: the stamp is set, who may
// get a class may use it, and who may not is refused by name.
func (r *run) answers(ctx context.Context) error {
	probe := r.forbidden()
	if err := r.author.Create(ctx, probe, client.DryRunAll); err != nil {
		return fmt.Errorf("a Cluster whose author may get its class: %w", err)
	}
	if probe.Annotations[pinAnnotation] == "" {
		return errors.New("a Cluster is not stamped")
	}
	err := r.intruder.Create(ctx, r.forbidden(), client.DryRunAll)
	if !apierrors.IsForbidden(err) || judge(err) != denied {
		return fmt.Errorf("a Cluster whose author may not get its class: %w", err)
	}
	return nil
}
