package stack

import (
	"context"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Main is the TestMain of a package whose tests share one stack. It starts the stack, lets the package prepare it,
// runs the tests, runs the checks, and stops the stack. If anything fails, it prints the end of the logs of
// Muster's processes. MUSTER_TEST_DIR names the directory for the stack's files. The result is for os.Exit.
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
