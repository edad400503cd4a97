// Command used prints what the queries of alerts and dashboard ask for.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/muster-fleet/muster/test/monitoring"
)

func main() {
	used, err := monitoring.Used()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(used, "\n"))
}
