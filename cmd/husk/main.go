// Command husk is the command line of huskd: it runs pods on this machine and inspects them.
package main

import (
	"os"

	"github.com/huskd/husk/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
