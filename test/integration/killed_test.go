package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/faults/proxy"
	"github.com/muster-fleet/muster/test/stack"
)

// The syncer may be killed after any of the writes with which it retires a mapping. The next one completes the
// retirement, or takes it back for a new Cluster. At no time is the mapping deleted while Fleet deploys through it, and
// a Cluster of the same class in another namespace keeps what it has.
func TestKilledWhileItRetires(t *testing.T) {
	g := NewWithT(t)
	var between *proxy.Proxy
	ownStackOf(t, g, stack.Options{Front: func(process string, server stack.APIServer) (string, error) {
		if process != syncerProcess {
			return server.URL, nil
		}
		p, address, err := proxy.Front(t.Context(), server)
		between = p
		return address, err
	}})
	// Nobody releases the lease of a process that was killed.
	deployment, arguments := named(&appsv1.Deployment{}, "muster-system", syncerProcess), []string{}
	for _, argument := range []string{"lease-duration=2s", "renew-deadline=1s", "retry-period=200ms"} {
		arguments = append(arguments, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/0","value":"--leader-elect-%s"}`, argument))
	}
	g.Expect(admin.Patch(ctx, deployment, client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(arguments, ",")+"]")))).To(Succeed())
	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())

	for _, comesBack := range []bool{false, true} {
		for writes, isDone := 0, false; !isDone; writes++ {
			t.Run(fmt.Sprintf("after %d writes, a new Cluster: %t", writes, comesBack), func(t *testing.T) {
				g := NewWithT(t)
				isDone = killedWhileItRetires(t, g, between, writes, comesBack)
				g.Expect(writes).To(BeNumerically("<", 15), "it never stops writing")
			})
			if t.Failed() {
				return
			}
		}
	}
}

// killedWhileItRetires reports whether the retirement needed no more than so many writes.
func killedWhileItRetires(t *testing.T, g Gomega, between *proxy.Proxy, writes int, comesBack bool) (isDone bool) {
	s := newScene(t, g)
	user := s.imported(g, "user")
	appears(g, s.mapping(), s.group())
	neighbour := s
	neighbour.namespace = newNamespace(t, g, "team", nil)
	neighbour.imported(g, "neighbour")
	appears(g, neighbour.mapping(), neighbour.group())
	kept := []client.Object{neighbour.fleet("neighbour"), neighbour.mapping(), neighbour.group()}
	exists(g, kept...)
	uids := uidsOf(kept)
	deployments := []*fleetv1.BundleDeployment{}
	for _, bundle := range []string{"app", "base"} {
		create(g, named(&fleetv1.Bundle{}, s.classNamespace, bundle))
		deployments = append(deployments, s.deployed(t, g, bundle, "user"))
	}
	mapping := s.mapping()
	exists(g, mapping)
	stop := s.playsFleet(g, mapping.UID, deployments)
	defer stop()

	between.Inject(proxy.Plan{Limit: new(writes)}, 0)
	deleteNow(g, user)
	g.Eventually(func(g Gomega) {
		isDone = admin.Get(ctx, client.ObjectKeyFromObject(mapping), s.mapping()) != nil && admin.Get(ctx, client.ObjectKeyFromObject(s.group()), s.group()) != nil
		g.Expect(isDone || between.Counts()[proxy.CutBefore] > 0).To(BeTrue(), "no write was cut, and mapping or group is left")
	}).WithTimeout(3 * patience).Should(Succeed())
	g.Expect(env.Kill(ctx, syncerProcess)).To(Succeed())
	if comesBack {
		s.started(g, "next")
	}
	between.Inject(proxy.Plan{}, 0)
	g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())

	if comesBack {
		appears(g, s.fleet("next"))
		g.Eventually(func(g Gomega) {
			its := s.mapping()
			exists(g, its, s.group())
			g.Expect(desired.Maps(its)).To(BeTrue())
		}).MustPassRepeatedly(10).Should(Succeed())
	} else {
		g.Eventually(func(g Gomega) { isGone(g, s.mapping(), s.group(), s.fleet("user")) }).WithTimeout(3 * patience).Should(Succeed())
	}
	exists(g, kept...)
	g.Expect(uidsOf(kept)).To(Equal(uids))
	g.Expect(desired.Maps(kept[1].(*fleetv1.BundleNamespaceMapping))).To(BeTrue())
	return isDone
}

// playsFleet deletes a BundleDeployment once its Bundle is to be looked at again while the mapping maps nothing, as Fleet
// does. What it returns ends that, and expects that the mapping was not deleted before the last of them.
func (s scene) playsFleet(g Gomega, mapping types.UID, deployments []*fleetv1.BundleDeployment) (stop func()) {
	playing, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for ; playing.Err() == nil; time.Sleep(20 * time.Millisecond) {
				its, left := s.mapping(), 0
				err := admin.Get(ctx, client.ObjectKeyFromObject(its), its)
				isThere := err == nil && its.UID == mapping
				for _, deployment := range deployments {
					if admin.Get(ctx, client.ObjectKeyFromObject(deployment), &fleetv1.BundleDeployment{}) != nil {
						continue
					}
					left++
					bundle := named(&fleetv1.Bundle{}, s.classNamespace, deployment.Name)
					if err := admin.Get(ctx, client.ObjectKeyFromObject(bundle), bundle); err != nil {
						return err
					}
					if isThere && !desired.Maps(its) && bundle.Annotations[desired.RetargetAnnotation] != "" {
						if err := admin.Delete(ctx, deployment); err != nil {
							return err
						}
					}
				}
				if client.IgnoreNotFound(err) == nil && !isThere && left > 0 {
					return fmt.Errorf("the mapping is gone, but %d BundleDeployments are left", left)
				}
			}
			return nil
		}()
	}()
	return func() {
		end()
		g.Expect(<-done).To(Succeed())
	}
}

func uidsOf(objects []client.Object) (uids []types.UID) {
	for _, object := range objects {
		uids = append(uids, object.GetUID())
	}
	return uids
}
