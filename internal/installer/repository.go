package installer

import (
	"context"
	"math"
	"net/url"

	"github.com/Masterminds/semver/v3"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/repository"
)

// charts is a repository with Fleet's charts. Its client is for one step, in which it reads the index once.
type charts struct {
	*repository.Client
	url    string
	access repository.Access
}

// Open returns the repository at an address: https://, http:// or oci://. The system's authorities are trusted only if
// access has none.
func Open(address string, access repository.Access) (Repository, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		return nil, &Problem{addonsv1.RepositoryInvalidReason, "spec.install.repository is not the URL of a repository"}
	}
	if user := parsed.User; user != nil {
		if access.Username == "" && access.AccessToken == "" {
			access.Username = user.Username()
			access.Password, _ = user.Password()
		}
		parsed.User = nil
	}
	client := repository.New(repository.Options{Interval: math.MaxInt64, UserAgent: "muster-installer", AllowHTTP: true, OnlyAuthorities: true})
	return &charts{client, parsed.String(), access}, nil
}

// Offers returns the versions of a chart. An exact version is not looked for among all others, which may be too many; these
// are the answer if it is missing.
func (c *charts) Offers(ctx context.Context, chart string, exact *semver.Version) (offers []*semver.Version, err error) {
	request, versions := c.request(chart), make([]string, 1)
	if exact != nil {
		request.Version = exact.Original()
		versions[0], err = c.Version(ctx, request)
	}
	if missing := err; exact == nil || repository.ReasonOf(err) == repository.NoVersion {
		if versions, err = c.Versions(ctx, request); missing != nil && err != nil && repository.ReasonOf(err) != repository.NoChart {
			err = missing
		}
	}
	for _, text := range versions {
		// An unparsable version can be neither named nor compared.
		if version, err := semver.NewVersion(text); err == nil {
			offers = append(offers, version)
		}
	}
	return offers, meaning(err)
}

// Fetch downloads a chart.
func (c *charts) Fetch(ctx context.Context, chart string, version *semver.Version) ([]byte, error) {
	archive, err := c.Archive(ctx, c.request(chart), version.Original())
	return archive, meaning(err)
}

func (c *charts) request(chart string) repository.Request {
	return repository.Request{RepoURL: c.url, Chart: chart, Access: c.access}
}

// meaning returns a *Problem that says what to do, if only a person can act.
func meaning(err error) error {
	const checkURL = "; check spec.install.repository"
	switch repository.ReasonOf(err) {
	case repository.Untrusted:
		return &Problem{addonsv1.RepositoryNotTrustedReason, err.Error() + "; put its CA into the key ca.crt of the Secret that spec.install.repositorySecretRef names"}
	case repository.BadAuthority:
		return &Problem{addonsv1.SecretUnusableReason, "spec.install.repositorySecretRef: its key ca.crt holds no certificate in PEM"}
	case repository.Refused:
		return &Problem{addonsv1.RepositoryRefusedReason, err.Error() + ": put username and password, or token, into the Secret that spec.install.repositorySecretRef names"}
	case repository.NoChart:
		return &Problem{addonsv1.ChartMissingReason, err.Error() + checkURL}
	case repository.NoVersion:
		return &Problem{addonsv1.VersionUnknownReason, err.Error()}
	case repository.Invalid, repository.TooLarge:
		return &Problem{addonsv1.RepositoryInvalidReason, err.Error() + checkURL}
	default:
		return err
	}
}
