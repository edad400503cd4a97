package faults

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/poll"
)

// absent is how long the Service may take to notice that a replica is dead.
const absent = 3 * time.Second

var (
	servingTLS = client.ObjectKey{Namespace: "muster-system", Name: "muster-webhook-tls"}
	authority  = client.ObjectKey{Namespace: "muster-system", Name: "muster-ca"}
)

// killOneWebhook kills one of two replicas. Requests in flight, and later ones until the Service notices, may not
// reach a webhook.
func killOneWebhook(ctx context.Context, r *run) error {
	victim := replicas(webhook)[r.rng.IntN(2)]
	r.kubelet.hold(victim)
	defer r.kubelet.release(victim)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, victim); err != nil {
		return err
	}
	if err := sleep(ctx, absent); err != nil {
		return err
	}
	// From here on the other replica answers everything.
	r.webhooksDown.Store(false)
	return r.pause(ctx, time.Second, 4*time.Second)
}

// killBothWebhooks leaves no replica for a while.
func killBothWebhooks(ctx context.Context, r *run) error {
	r.kubelet.hold(replicas(webhook)...)
	defer r.kubelet.release(replicas(webhook)...)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, replicas(webhook)...); err != nil {
		return err
	}
	return r.pause(ctx, 2*time.Second, 6*time.Second)
}

// changeClassLabels installs and removes the component that labels Clusters in the API server, while no webhook runs.
func changeClassLabels(ctx context.Context, r *run) error {
	if err := r.env.StartComponent(ctx, "class-labels"); err != nil {
		return err
	}
	if err := killBothWebhooks(ctx, r); err != nil {
		return err
	}
	_, err := r.env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
	return err
}

// expireCertificate makes the webhook serve a certificate that has expired while cert-manager was down, and then
// starts cert-manager.
func expireCertificate(ctx context.Context, r *run) error {
	r.kubelet.hold(certManager)
	defer r.kubelet.release(certManager)
	if err := r.kill(ctx, certManager); err != nil {
		return err
	}
	ca, serving := &corev1.Secret{}, &corev1.Secret{}
	if err := errors.Join(r.admin.Get(ctx, authority, ca), r.admin.Get(ctx, servingTLS, serving)); err != nil {
		return err
	}
	before := serving.DeepCopy()
	if err := expire(serving, ca); err != nil {
		return err
	}
	r.webhooksDown.Store(true)
	if err := r.admin.Patch(ctx, serving, client.MergeFrom(before)); err != nil {
		return err
	}
	// An earlier connection stays open, so only a new one shows the expired certificate.
	if err := poll.Until(ctx, "new connections to be shown the expired certificate", time.Minute, func(ctx context.Context) error {
		r.env.CutConnections(webhook)
		err := r.author.Create(ctx, r.forbidden(), client.DryRunAll)
		if judge(err) != closed {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	}); err != nil {
		return err
	}
	return r.pause(ctx, time.Second, 5*time.Second)
}

// expire issues a certificate again, as if two days ago, for one day.
func expire(serving, ca *corev1.Secret) error {
	key := func(of *corev1.Secret) (tls.Certificate, error) {
		return tls.X509KeyPair(of.Data[corev1.TLSCertKey], of.Data[corev1.TLSPrivateKeyKey])
	}
	issuer, err := key(ca)
	if err != nil {
		return err
	}
	subject, err := key(serving)
	if err != nil {
		return err
	}
	subject.Leaf.NotBefore, subject.Leaf.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour)
	expired, err := x509.CreateCertificate(rand.Reader, subject.Leaf, issuer.Leaf, subject.Leaf.PublicKey, issuer.PrivateKey)
	serving.Data[corev1.TLSCertKey] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: expired})
	return err
}

// removeCertManager restores the state before cert-manager is installed: without a
// certificate no webhook starts, and the configurations have no CA. Then cert-manager starts.
func removeCertManager(ctx context.Context, r *run) error {
	processes := append(replicas(webhook), certManager)
	r.kubelet.hold(processes...)
	defer r.kubelet.release(processes...)
	r.webhooksDown.Store(true)
	if err := r.kill(ctx, processes...); err != nil {
		return err
	}
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = servingTLS.Namespace, servingTLS.Name
	if err := errors.Join(r.admin.Delete(ctx, secret), r.distrust(ctx)); err != nil {
		return err
	}
	if err := r.pause(ctx, 2*time.Second, 6*time.Second); err != nil {
		return err
	}
	r.over = time.Now()
	r.kubelet.release(certManager)
	// A pod waits for the Secret that it mounts.
	for _, replica := range replicas(webhook) {
		if err := r.env.Start(ctx, replica); err != nil {
			return err
		}
	}
	return nil
}

// distrust removes the CA from the webhook configurations.
func (r *run) distrust(ctx context.Context) error {
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := errors.Join(
		r.admin.Get(ctx, client.ObjectKey{Name: "muster-mutating-webhook"}, mutating),
		r.admin.Get(ctx, client.ObjectKey{Name: "muster-validating-webhook"}, validating),
	); err != nil {
		return err
	}
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].ClientConfig.CABundle = nil
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.CABundle = nil
	}
	return errors.Join(r.admin.Update(ctx, mutating), r.admin.Update(ctx, validating))
}

// answers checks that the webhooks decide correctly: the stamp is set, a user who may get a class may use it, and for
// a user who may not, the named webhook refuses it.
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
