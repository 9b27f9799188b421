package redlockprom_test

import (
	"context"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockprom"
)

func Example() {
	metrics := redlockprom.New()
	prometheus.MustRegister(metrics)
	rl, err := redlock.Open(context.Background(), []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}, &redlock.Options{
		Hooks: redlock.JoinHooks(redlock.LogHooks(nil), metrics.Hooks()),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rl.Close()
	http.Handle("/metrics", promhttp.Handler())
}
