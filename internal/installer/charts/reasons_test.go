package charts

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/installer"
)

// Whatever is wrong with a repository has the reason that says what to do about it; what may be
// over soon has none.
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
		change func(*installer.Credentials)
		chart  string
		want   string
	}{
		"no trust":         {change: func(c *installer.Credentials) { c.CA = nil }, want: installer.ReasonRepositoryTrust},
		"no CA":            {change: func(c *installer.Credentials) { c.CA = []byte("none") }, want: installer.ReasonSecretUnusable},
		"a wrong password": {change: func(c *installer.Credentials) { c.Password = "wrong" }, want: installer.ReasonRepositoryRefuse},
		"forbidden":        {answer: answering(http.StatusForbidden, ""), want: installer.ReasonRepositoryRefuse},
		"not there":        {answer: answering(http.StatusNotFound, ""), want: installer.ReasonRepositoryBroken},
		"a web page":       {answer: answering(http.StatusOK, "<!DOCTYPE html><html></html>"), want: installer.ReasonRepositoryBroken},
		"no index":         {answer: answering(http.StatusOK, "entries: ["), want: installer.ReasonRepositoryBroken},
		"no such chart":    {chart: "other", want: installer.ReasonChartMissing},
		"no such version":  {answer: answering(http.StatusOK, "entries: {fleet: []}"), want: installer.ReasonChartMissing},
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
				_, err = repository.Offers(t.Context(), test.chart)
			}
			problem := &installer.Problem{}
			if isProblem := errors.As(err, &problem); err == nil || isProblem != (test.want != "") || problem.Reason != test.want {
				t.Errorf("%v, reason %q, want %q", err, problem.Reason, test.want)
			}
		})
	}
	if _, err := Open("https://", installer.Credentials{}); !strings.Contains(err.Error(), "is no URL of a repository") {
		t.Errorf("%v", err)
	}
}
