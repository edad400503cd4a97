package inputs

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// HelmChartProxies that are deleted before their turn leave no goroutine behind, however slow the repositories of
// their namespace are: otherwise the bubble would not end.
func TestForgottenBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reader{Now: time.Now, Wake: func(key plan.Key) { t.Errorf("%s was read", key) }}
		r.all, r.slots = map[plan.Key]*entry{}, fair.New(math.MaxInt64, perNamespace)
		for range perNamespace {
			if err := r.slots.Wait(context.Background(), "slow"); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 10 {
			proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "slow", Name: "web", UID: types.UID(fmt.Sprint(i))}}
			if _, _, err := r.Get(proxy); err == nil {
				t.Fatal("it was read at once")
			}
			if i%2 == 0 { // The others are recreated under the same name.
				r.Forget(client.ObjectKeyFromObject(proxy))
			}
		}
		r.Forget(plan.Key{Namespace: "slow", Name: "web"})
	})
}
