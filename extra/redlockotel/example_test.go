package redlockotel_test

import (
	"context"
	"log"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockotel"
)

func Example() {
	// With the global providers, which the program has set up before. examples/telemetry is a
	// whole program.
	rl, err := redlock.Open(context.Background(), []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}, &redlock.Options{
		Hooks: redlockotel.Hooks(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rl.Close()
}
