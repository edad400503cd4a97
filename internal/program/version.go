package program

import (
	"errors"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/version"
)

// ErrAnswered is returned when the arguments asked for something that has been printed, so
// that there is nothing left to do. Main treats it as success.
var ErrAnswered = errors.New("the question has been answered")

// Parse reads the arguments of a program, or of one of its subcommands, and answers
// --version, which all of them have.
func Parse(fs *pflag.FlagSet, args []string, stdout io.Writer) error {
	asked := fs.Bool("version", false, "Print which build this is, and exit.")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if !*asked {
		return nil
	}
	if _, err := fmt.Fprintln(stdout, fs.Name(), version.Get()); err != nil {
		return err
	}
	return ErrAnswered
}

// announce reports which build of a program starts, in its log and as a metric.
func announce(log logr.Logger, name string) {
	build := version.Get()
	log.Info("Starting "+name, "version", build.Version, "revision", build.Revision, "date", build.Date, "go", build.GoVersion, "platform", build.Platform)
	metrics.Build(build.Version, build.Revision, build.GoVersion)
}
