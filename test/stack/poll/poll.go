// Package poll waits for conditions.
package poll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// pollInterval is the time between checks of a condition. It is short because everything is local.
const pollInterval = 50 * time.Millisecond

// Until polls until the condition returns nil. After the timeout it returns an error with the condition's name and
// its last error.
func Until(ctx context.Context, what string, timeout time.Duration, condition func(context.Context) error) error {
	return UntilOr(ctx, what, timeout, condition, func() error { return nil })
}

// UntilOr also ends early when broken returns an error.
func UntilOr(ctx context.Context, what string, timeout time.Duration, condition func(context.Context) error, broken func() error) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		// Each check has a short deadline of its own: one request that hangs must not use up the whole timeout.
		poll, done := context.WithTimeout(ctx, 10*time.Second)
		err := condition(poll)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if err := broken(); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", Since(begin), what, last)
		case <-time.After(pollInterval):
		}
	}
}

// Since renders the time passed for people.
func Since(begin time.Time) string { return time.Since(begin).Round(100 * time.Millisecond).String() }

// Answers is a condition: a GET returns an answer that a kubelet would count as success.
func Answers(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode < http.StatusBadRequest {
			return nil
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		return errors.Join(fmt.Errorf("%s: %s: %s", url, response.Status, strings.TrimSpace(string(body))), err)
	}
}
