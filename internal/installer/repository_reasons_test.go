package installer

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/repository"
)

// Each problem with a repository has a reason that says what to do; one that may be over soon has
// none.
func TestReasons(t *testing.T) {
	answering := func(status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		change func(*repository.Access)
		chart  string
		want   string
	}{
		"no trust":         {change: func(c *repository.Access) { c.Authorities = nil }, want: addonsv1.RepositoryNotTrustedReason},
		"no CA":            {change: func(c *repository.Access) { c.Authorities = []byte("none") }, want: addonsv1.SecretUnusableReason},
		"a wrong password": {change: func(c *repository.Access) { c.Password = "wrong" }, want: addonsv1.RepositoryRefusedReason},
		"forbidden":        {answer: answering(http.StatusForbidden, ""), want: addonsv1.RepositoryRefusedReason},
		"not there":        {answer: answering(http.StatusNotFound, ""), want: addonsv1.RepositoryInvalidReason},
		"a web page":       {answer: answering(http.StatusOK, "<!DOCTYPE html><html></html>"), want: addonsv1.RepositoryInvalidReason},
		"no index":         {answer: answering(http.StatusOK, "entries: ["), want: addonsv1.RepositoryInvalidReason},
		"no such chart":    {chart: "other", want: addonsv1.ChartMissingReason},
		"no such version":  {answer: answering(http.StatusOK, "entries: {fleet: []}"), want: addonsv1.ChartMissingReason},
		"out of order":     {answer: answering(http.StatusServiceUnavailable, ""), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			address, credentials := served(t, test.answer)
			if test.change != nil {
				test.change(&credentials)
			}
			if test.chart == "" {
				test.chart = "fleet"
			}
			repository, err := Open(address, credentials)
			if err == nil {
				_, err = repository.Offers(t.Context(), test.chart, nil)
			}
			problem := &Problem{}
			if isProblem := errors.As(err, &problem); err == nil || isProblem != (test.want != "") || problem.Reason != test.want {
				t.Errorf("%v, reason %q, want %q", err, problem.Reason, test.want)
			}
		})
	}
	if _, err := Open("https://", repository.Access{}); !strings.Contains(err.Error(), "is not the URL of a repository") {
		t.Errorf("%v", err)
	}
}
