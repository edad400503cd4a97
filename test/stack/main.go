package stack

import (
	"context"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Main is the TestMain of a package whose tests share one stack. It brings the stack up,
// lets the package prepare what its tests need, runs them, lets it check what they have
// left, and takes the stack down. If anything failed, the end of the logs of Muster's
// processes is printed. MUSTER_TEST_DIR says where the stack's files are to be kept. The
// result is for os.Exit.
func Main(tests interface{ Run() int }, options Options, prepare func(*Stack) error, checks ...func(*Stack) error) (code int) {
	log.SetLogger(logr.Discard())
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	options.Progress, options.Dir = os.Stderr, os.Getenv("MUSTER_TEST_DIR")
	s, err := Up(context.Background(), options)
	if err != nil {
		fail(err)
		return code
	}
	defer func() { fail(s.Down()) }()
	if err := prepare(s); err != nil {
		fail(err)
		return code
	}
	code = tests.Run()
	for _, check := range checks {
		fail(check(s))
	}
	if code != 0 {
		for _, w := range s.workloads {
			fmt.Fprintf(os.Stderr, "--- the end of the log of %s\n%s\n", w.name, s.LogTail(w.name))
		}
	}
	return code
}
