package installer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/repository"
)

const archive = "an archive"

// served serves a repository with one chart to clients that know the password.
func served(t *testing.T, change func(w http.ResponseWriter, r *http.Request) (done bool)) (address string, access repository.Access) {
	t.Helper()
	sum := sha256.Sum256([]byte(archive))
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change != nil && change(w, r) {
			return
		}
		user, password, _ := r.BasicAuth()
		switch {
		case user != "anna" || password != "right":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/charts/index.yaml":
			fmt.Fprintf(w, "apiVersion: v1\nentries:\n  fleet:\n  - {version: 0.16.0, urls: [files/fleet-0.16.0.tgz], digest: %s}\n  - {version: 0.15.0, urls: [files/other.tgz], digest: \"00\"}\n  - {version: none}\n", hex.EncodeToString(sum[:]))
		case strings.HasPrefix(r.URL.Path, "/charts/files/"):
			fmt.Fprint(w, archive)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL + "/charts", repository.Access{Credential: repository.Credential{Username: "anna", Password: "right"}, Authorities: ca}
}

func TestIndexed(t *testing.T) {
	address, credentials := served(t, nil)
	repository, err := Open(address, credentials)
	if err != nil {
		t.Fatal(err)
	}
	offers, err := repository.Offers(t.Context(), "fleet", nil)
	if err != nil || len(offers) != 2 || offers[0].String() != "0.16.0" {
		t.Errorf("%v, %v", offers, err)
	}
	got, err := repository.Fetch(t.Context(), "fleet", semver.MustParse("v0.16.0"))
	if err != nil || string(got) != archive {
		t.Errorf("%q, %v", got, err)
	}
	for version, want := range map[string]string{"0.15.0": addonsv1.RepositoryInvalidReason, "0.14.0": addonsv1.VersionUnknownReason} {
		_, err := repository.Fetch(t.Context(), "fleet", semver.MustParse(version))
		if problem := (*Problem)(nil); !errors.As(err, &problem) || problem.Reason != want {
			t.Errorf("%s: %v, want %s", version, err, want)
		}
	}
	if _, err := repository.Offers(t.Context(), "other", nil); !strings.Contains(fmt.Sprint(err), `has no chart "other"`) {
		t.Errorf("%v", err)
	}
}

// An exact version is not looked for among all tags of a registry, which may be too many. If it is missing, the answer names
// others.
func TestExactOffer(t *testing.T) {
	for name, test := range map[string]struct {
		chart, tags string
		want        []string
		err         string
	}{
		"it is there":                {chart: "fleet", want: []string{"0.16.0"}},
		"the chart is missing":       {chart: "none", err: `none does not exist`},
		"it is missing":              {chart: "other", tags: `["0.15.0","latest"]`, want: []string{"0.15.0"}},
		"it is missing among others": {chart: "other", tags: `[` + strings.Repeat(`"0.15.0",`, 100_001) + `"0.15.0"]`, err: `has no version "0.16.0"`},
	} {
		t.Run(name, func(t *testing.T) {
			address, credentials := served(t, func(w http.ResponseWriter, r *http.Request) bool {
				switch r.URL.Path {
				case "/v2/charts/fleet/manifests/0.16.0":
					w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
					w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("{}"))))
					_, _ = w.Write([]byte("{}"))
				case "/v2/charts/other/tags/list":
					_, _ = w.Write([]byte(`{"tags":` + test.tags + `}`))
				default:
					http.NotFound(w, r)
				}
				return true
			})
			repository, err := Open(strings.Replace(address, "https://", "oci://", 1), credentials)
			if err != nil {
				t.Fatal(err)
			}
			offers, err := repository.Offers(t.Context(), test.chart, semver.MustParse("0.16.0"))
			var got []string
			for _, offer := range offers {
				got = append(got, offer.String())
			}
			if !slices.Equal(got, test.want) || (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v, %v, want %v, %q", got, err, test.want, test.err)
			}
		})
	}
}

// The client sends credentials only to the repository's own host, and follows no redirect to another.
func TestCredentialsStay(t *testing.T) {
	var heard []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		heard = append(heard, r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	address, credentials := served(t, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "index.yaml") {
			fmt.Fprintf(w, "entries: {fleet: [{version: 0.16.0, urls: [%q]}, {version: 0.17.0, urls: [moved.tgz]}]}", elsewhere.URL+"/direct")
			return true
		}
		http.Redirect(w, r, elsewhere.URL+"/redirected", http.StatusFound)
		return true
	})
	repository, err := Open(address, credentials)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repository.Fetch(t.Context(), "fleet", semver.MustParse("0.16.0")); err != nil {
		t.Error(err)
	}
	if _, err := repository.Fetch(t.Context(), "fleet", semver.MustParse("0.17.0")); !strings.Contains(fmt.Sprint(err), "which is not followed") {
		t.Errorf("%v", err)
	}
	if len(heard) != 1 || heard[0] != "/direct " {
		t.Errorf("another host received %q", heard)
	}
}
