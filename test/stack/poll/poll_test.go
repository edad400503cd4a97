package poll

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestUntilReportsWhatItSaw(t *testing.T) {
	err := Until(t.Context(), "the moon", 100*time.Millisecond, func(context.Context) error { return errors.New("it is cloudy") })
	if err == nil || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "it is cloudy") {
		t.Errorf("got %v", err)
	}
}
