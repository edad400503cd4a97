// Command oracle is package oracle as a program: package wire asks it.
package main

import (
	"fmt"
	"os"

	"github.com/muster-fleet/muster/test/oracle/wire"
)

func main() {
	if err := wire.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}
