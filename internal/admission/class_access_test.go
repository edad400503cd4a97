package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/settings"
)

// reviewer simulates the API server's authorizer.
type reviewer struct {
	client.Client
	allow bool
	only  string // the verb that is allowed; all if empty
	err   error
	times int // how many calls fail; all if 0
	asked []authorizationv1.SubjectAccessReviewSpec
}

func (r *reviewer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	review, ok := object.(*authorizationv1.SubjectAccessReview)
	if !ok {
		return fmt.Errorf("created a %T", object)
	}
	r.asked = append(r.asked, review.Spec)
	if r.times > 0 && len(r.asked) > r.times {
		r.err = nil
	}
	review.Status.Allowed = r.allow && (r.only == "" || r.only == review.Spec.ResourceAttributes.Verb)
	return r.err
}

func TestClassAccess(t *testing.T) {
	const (
		own     = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"team"}}}}`
		unnamed = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`
		none    = `{"metadata":{"name":"prod"}}`
		cross   = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"}}}}`
		another = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"other","namespace":"classes"}}}}`
		moved   = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"elsewhere"}}}}`
		beta1   = `{"apiVersion":"cluster.x-k8s.io/v1beta1","metadata":{"name":"prod"},"spec":{"topology":{"class":"standard","classNamespace":"classes"}}}`
	)
	enforce, warn, off := configured(t, `policy: {crossNamespaceClass: Enforce}`), configured(t, `policy: {crossNamespaceClass: Warn}`), configured(t, `policy: {crossNamespaceClass: "Off"}`)
	use, warnUse := configured(t, `policy: {crossNamespaceClassVerb: use}`), configured(t, `policy: {crossNamespaceClass: Warn, crossNamespaceClassVerb: use}`)
	type answer struct {
		Code     int32 // 0 if allowed
		Asked    int
		Warnings int
		Verb     string // "get" if empty and the webhook asked
	}
	tests := map[string]struct {
		reader   client.Reader
		isGone   bool
		reviewer reviewer
		request  admission.Request
		want     answer
	}{
		"no class":                           {request: create(none)},
		"own namespace":                      {request: create(own)},
		"own namespace by default":           {request: create(unnamed)},
		"not allowed":                        {request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"allowed":                            {reviewer: reviewer{allow: true}, request: create(cross), want: answer{Asked: 1}},
		"v1beta1":                            {request: create(beta1), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"Enforce":                            {reader: enforce, request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"Warn":                               {reader: warn, request: create(cross), want: answer{Asked: 1, Warnings: 1}},
		"Warn, allowed":                      {reader: warn, reviewer: reviewer{allow: true}, request: create(cross), want: answer{Asked: 1}},
		"Off":                                {reader: off, request: create(cross)},
		"use, not allowed":                   {reader: use, request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1, Verb: "use"}},
		"use, allowed":                       {reader: use, reviewer: reviewer{allow: true}, request: create(cross), want: answer{Asked: 1, Verb: "use"}},
		"use, Warn":                          {reader: warnUse, request: create(cross), want: answer{Asked: 1, Warnings: 1, Verb: "use"}},
		"settings unreadable":                {reader: &cached{err: errors.New("broken")}, reviewer: reviewer{allow: true}, request: create(cross), want: answer{Code: http.StatusInternalServerError}},
		"settings unusable, use":             {reader: configured(t, `{policy: {crossNamespaceClassVerb: use}, cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}}`), request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1, Verb: "use"}},
		"settings gone, allowed both":        {isGone: true, reviewer: reviewer{allow: true}, request: create(cross), want: answer{Asked: 2, Verb: "use"}},
		"settings gone, get only":            {isGone: true, reviewer: reviewer{allow: true, only: "get"}, request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 2, Verb: "use"}},
		"settings gone, use only":            {isGone: true, reviewer: reviewer{allow: true, only: "use"}, request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"settings unusable":                  {reader: configured(t, `{policy: {crossNamespaceClass: "Off"}, cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}}`), request: create(cross), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"nobody answers":                     {reviewer: reviewer{allow: true, err: io.ErrUnexpectedEOF}, request: create(cross), want: answer{Code: http.StatusInternalServerError, Asked: 4}},
		"SubjectAccessReviews are forbidden": {reviewer: reviewer{err: apierrors.NewForbidden(schema.GroupResource{}, "", nil)}, request: create(cross), want: answer{Code: http.StatusInternalServerError, Asked: 1}},
		"a timeout":                          {reviewer: reviewer{allow: true, err: apierrors.NewTimeoutError("", 0), times: 1}, request: create(cross), want: answer{Asked: 2}},
		"etcd has no leader":                 {reviewer: reviewer{allow: true, err: apierrors.NewInternalError(errors.New("no leader")), times: 1}, request: create(cross), want: answer{Asked: 2}},
		"the kind is not registered":         {reviewer: reviewer{allow: true, err: errors.New("no kind"), times: 1}, request: create(cross), want: answer{Code: http.StatusInternalServerError, Asked: 1}},
		"a connection is cut":                {reviewer: reviewer{allow: true, err: syscall.ECONNRESET, times: 2}, request: create(cross), want: answer{Asked: 3}},
		"no answer, Warn":                    {reader: warn, reviewer: reviewer{err: io.ErrUnexpectedEOF}, request: create(cross), want: answer{Code: http.StatusInternalServerError, Asked: 4}},
		"update: the same":                   {request: update(cross, cross)},
		"update: the same, other version":    {request: update(cross, beta1)},
		"update: another class":              {request: update(cross, another), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"update: another namespace":          {request: update(cross, moved), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"update: from its own":               {request: update(own, cross), want: answer{Code: http.StatusForbidden, Asked: 1}},
		"update: to its own":                 {request: update(cross, own)},
		"update: to none":                    {request: update(cross, none)},
		"no Cluster":                         {request: create(`[]`), want: answer{Code: http.StatusBadRequest}},
		"none before":                        {request: update(`[]`, cross), want: answer{Code: http.StatusBadRequest}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.reader == nil {
				test.reader = &cached{}
			}
			current := settings.NewReader(test.reader)
			if test.isGone {
				current.Saw(nil)
			}
			response := (&ClassAccess{Settings: current, Reviewer: &test.reviewer}).Handle(t.Context(), test.request)
			got := answer{Asked: len(test.reviewer.asked), Warnings: len(response.Warnings)}
			verb := "get"
			for _, asked := range test.reviewer.asked {
				if verb = asked.ResourceAttributes.Verb; verb != "get" {
					got.Verb = verb
				}
			}
			if !response.Allowed {
				got.Code = response.Result.Code
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s\n%v", diff, response.Result)
			}
			if got.Code == http.StatusForbidden {
				for _, part := range []string{"may not " + verb + " clusterclasses.cluster.x-k8s.io", "use a class of your own namespace, or ask for a Role there with verb " + verb + " on"} {
					if !strings.Contains(response.Result.Message, part) {
						t.Errorf("%q does not say %q", response.Result.Message, part)
					}
				}
			}
		})
	}
}

// The question names the requester with all attributes that the API server knows.
func TestClassAccessAsksAboutTheWholeIdentity(t *testing.T) {
	req := create(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"}}}}`)
	req.UserInfo = authenticationv1.UserInfo{
		Username: "anna", UID: "42", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}, "example.org/project": {"p"}},
	}
	reviewer := &reviewer{allow: true}
	if response := (&ClassAccess{Settings: settings.NewReader(&cached{}), Reviewer: reviewer}).Handle(t.Context(), req); !response.Allowed {
		t.Fatalf("refused: %v", response.Result)
	}
	want := []authorizationv1.SubjectAccessReviewSpec{{
		User: "anna", UID: "42", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a", "b"}, "example.org/project": {"p"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "clusterclasses", Namespace: "classes", Name: "standard",
		},
	}}
	if diff := cmp.Diff(want, reviewer.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}
