// composeload prints a compose file as `docker compose config` reads it: with its merge keys, variables and
// profiles resolved, and checked against the Compose specification.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	text, err := load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(text)
}

func load(file string) ([]byte, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithOsEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}
