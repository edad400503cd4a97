package poll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Answers is a condition: a GET is answered, and not with an error. This is what a kubelet
// takes for success.
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
