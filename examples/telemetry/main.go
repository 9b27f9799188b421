// Command telemetry shows what OpenTelemetry gets of a lock. It sets up the providers as a
// program does, with exporters that write to standard output in place of a collector's, lets
// two workers want the same lock, and prints their spans and metrics as JSON.
//
//	go run -C examples ./telemetry
//
// The nodes run inside the program, unless $REDLOCK_ADDRS has others.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockotel"
	"github.com/quorumlock/redlock/redlocktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv("REDLOCK_ADDRS")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addrs string) (err error) {
	list := strings.Split(addrs, ",")
	if addrs == "" {
		cluster, err := redlocktest.Start(5)
		if err != nil {
			return err
		}
		defer cluster.Close()
		list = cluster.Addrs()
	}
	finish, err := setUp(out)
	if err != nil {
		return err
	}
	// What was measured last is exported when the providers are shut down.
	defer func() { err = errors.Join(err, finish(context.WithoutCancel(ctx))) }()

	// Hooks takes the global providers, which setUp has set.
	rl, err := redlock.Open(ctx, list, &redlock.Options{
		Hooks: redlockotel.Hooks(),
	})
	if err != nil {
		return err
	}
	defer rl.Close()
	return work(ctx, rl)
}

// setUp makes the global providers of a program. Yours has exporters of its own, such as
// those of OTLP, and batches spans.
func setUp(out io.Writer) (finish func(context.Context) error, err error) {
	spans, err := stdouttrace.New(stdouttrace.WithWriter(out), stdouttrace.WithPrettyPrint())
	if err != nil {
		return nil, err
	}
	metrics, err := stdoutmetric.New(stdoutmetric.WithWriter(out), stdoutmetric.WithPrettyPrint())
	if err != nil {
		return nil, err
	}
	tracers := trace.NewTracerProvider(trace.WithSyncer(spans))
	meters := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(metrics)))
	otel.SetTracerProvider(tracers)
	otel.SetMeterProvider(meters)
	return func(ctx context.Context) error {
		return errors.Join(tracers.Shutdown(ctx), meters.Shutdown(ctx))
	}, nil
}

// work has a worker wait for a lock that another one holds. The spans of the library are
// children of the worker's own.
func work(ctx context.Context, rl *redlock.Redlock) error {
	ctx, span := otel.Tracer("example").Start(ctx, "charge order 42")
	defer span.End()
	key := "example-order:42-" + rand.Text()[:8] // trials do not meet
	other, err := rl.Mutex(key).Acquire(ctx)
	if err != nil {
		return err
	}
	released := make(chan error, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		released <- other.Release(ctx)
	}()
	err = rl.Mutex(key).Do(ctx, func(context.Context, *redlock.Lock) error { return nil })
	return errors.Join(err, <-released)
}
