package redlockotel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockotel"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/redlocktest"
)

const (
	ttl = 10 * time.Second
	key = "orders:42"
)

// bed is a Redlock over three fake nodes, in virtual time, that is looked at.
type bed struct {
	*testing.T
	cluster *redlocktest.Cluster
	rl      *redlock.Redlock
	spans   *tracetest.SpanRecorder
	tracer  trace.Tracer // the user's
	reader  *sdkmetric.ManualReader
}

func inBubble(t *testing.T, test func(b *bed), opts ...redlockotel.Option) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		b := &bed{T: t, cluster: c, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
		tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans))
		mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader))
		b.tracer = tp.Tracer("user")
		opts = append([]redlockotel.Option{redlockotel.WithTracerProvider(tp), redlockotel.WithMeterProvider(mp)}, opts...)
		var err error
		b.rl, err = redlock.New(b.cluster.Clients(), &redlock.Options{Hooks: redlockotel.Hooks(opts...)})
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.rl.Close() })
		test(b)
	})
}

func (b *bed) lock(ctx context.Context, opts ...redlock.LockOption) *redlock.Lock {
	b.Helper()
	l, err := b.rl.Mutex(key, opts...).TryAcquire(ctx)
	require.NoError(b, err)
	return l
}

// span returns the latest of that name.
func (b *bed) span(name string) sdktrace.ReadOnlySpan {
	b.Helper()
	synctest.Wait()
	all := b.spans.Ended()
	for i := range all {
		if s := all[len(all)-1-i]; s.Name() == name {
			return s
		}
	}
	b.Fatalf("no span %q", name)
	return nil
}

// attrs reads like "a=1 b=x".
func attrs(kvs []attribute.KeyValue) string {
	var words []string
	set := attribute.NewSet(kvs...)
	for _, kv := range set.ToSlice() {
		words = append(words, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	return strings.Join(words, " ")
}

func TestNilChangesNothingOrIsRefused(t *testing.T) {
	assert.NotPanics(t, func() { redlockotel.Hooks(redlockotel.WithTracerProvider(nil), redlockotel.WithMeterProvider(nil)) })
	assert.PanicsWithValue(t, "redlockotel: option 1 of Hooks is nil: must be an Option", func() { redlockotel.Hooks(nil) })
}

func TestSpansOfAnOrdinaryLock(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		start := time.Now()
		lock := b.lock(ctx)
		time.Sleep(time.Second)
		require.NoError(b, lock.Extend(ctx, ttl))
		time.Sleep(time.Second)
		require.NoError(b, lock.Release(ctx))
		for i, name := range []string{"redlock acquire", "redlock extend", "redlock release"} {
			s := b.span(name)
			assert.Equal(b, trace.SpanKindClient, s.SpanKind())
			assert.Equal(b, parent.SpanContext().SpanID(), s.Parent().SpanID(), name)
			assert.True(b, s.StartTime().Equal(start.Add(time.Duration(i)*time.Second)), name)
			assert.True(b, s.EndTime().Equal(s.StartTime()), "in no time")
			assert.Equal(b, codes.Unset, s.Status().Code)
			assert.Contains(b, attrs(s.Attributes()), "redlock.key="+key)
			assert.NotContains(b, attrs(s.Attributes()), "error")
			assert.Equal(b, "github.com/quorumlock/redlock/extra/redlockotel", s.InstrumentationScope().Name)
			require.Len(b, s.Events(), 3, "one per node")
			granted := 0
			for j, e := range s.Events() {
				assert.Equal(b, "redlock.node", e.Name)
				assert.Contains(b, attrs(e.Attributes), "redlock.node.name="+b.rl.Nodes()[j])
				if strings.Contains(attrs(e.Attributes), "redlock.vote=granted") {
					granted++
				}
			}
			assert.GreaterOrEqual(b, granted, 2)
		}
		assert.Contains(b, attrs(b.span("redlock acquire").Attributes()), "redlock.acquire.attempts=1")
		assert.Contains(b, attrs(b.span("redlock extend").Attributes()), "redlock.extend.renewal=false")
		for _, s := range b.spans.Ended() {
			assert.NotEqual(b, "redlock wait", s.Name())
		}
	})
}

func TestSpanOfTheWait(t *testing.T) {
	inBubble(t, func(b *bed) {
		lock := b.lock(b.Context())
		start := time.Now()
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		done := make(chan error)
		go func() {
			_, err := b.rl.Mutex(key).Acquire(ctx)
			done <- err
		}()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		require.NoError(b, lock.Release(b.Context()))
		require.NoError(b, <-done)
		acquire, wait := b.span("redlock acquire"), b.span("redlock wait")
		assert.Equal(b, parent.SpanContext().SpanID(), acquire.Parent().SpanID())
		assert.Equal(b, acquire.SpanContext().SpanID(), wait.Parent().SpanID())
		assert.True(b, wait.StartTime().Equal(start))
		assert.True(b, wait.EndTime().Equal(start.Add(3*time.Second)))
		assert.True(b, acquire.StartTime().Equal(start))
		assert.True(b, acquire.EndTime().Equal(start.Add(3*time.Second)))
		for _, e := range acquire.Events() {
			assert.True(b, e.Time.Equal(acquire.EndTime()), "those of the last attempt")
		}
	})
}

func TestSpansOfFailures(t *testing.T) {
	inBubble(t, func(b *bed) {
		lock := b.lock(b.Context())
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		s := b.span("redlock acquire")
		assert.Contains(b, attrs(s.Attributes()), "error.type=held")
		assert.Equal(b, codes.Unset, s.Status().Code, "an answer, and no fault")

		for _, n := range b.cluster.Nodes() {
			n.Del(key)
		}
		require.Error(b, lock.Release(b.Context()))
		s = b.span("redlock release")
		assert.Contains(b, attrs(s.Attributes()), "error.type=not_held")
		assert.Equal(b, codes.Error, s.Status().Code)

		b.cluster.Node(0).Hang()
		b.cluster.Node(1).Hang()
		start := time.Now()
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		s = b.span("redlock acquire")
		assert.Contains(b, attrs(s.Attributes()), "error.type=no_quorum")
		assert.Equal(b, codes.Error, s.Status().Code)
		assert.Equal(b, err.Error(), s.Status().Description)
		assert.True(b, s.EndTime().After(start))
		require.Len(b, s.Events(), 3)
		for _, e := range s.Events()[:2] {
			assert.Contains(b, attrs(e.Attributes), "redlock.vote=unknown")
			assert.Contains(b, attrs(e.Attributes), "error.message=no answer in time")
			assert.True(b, e.Time.Equal(s.EndTime()), "when its time was up")
		}
		assert.Contains(b, attrs(s.Events()[2].Attributes), "redlock.vote=granted")
		assert.True(b, s.Events()[2].Time.Equal(start), "when it answered")
	})
}

// A lock may be renewed for days; the trace of the request that took it must not grow
// for as long.
func TestSpansOfRenewalsAreLinked(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		lock := b.lock(ctx, redlock.WithRenewal())
		parent.End()
		time.Sleep(ttl / 2)
		s := b.span("redlock extend")
		assert.Contains(b, attrs(s.Attributes()), "redlock.extend.renewal=true")
		assert.False(b, s.Parent().IsValid())
		assert.NotEqual(b, parent.SpanContext().TraceID(), s.SpanContext().TraceID())
		require.Len(b, s.Links(), 1)
		assert.Equal(b, parent.SpanContext().SpanID(), s.Links()[0].SpanContext.SpanID())
		require.NoError(b, lock.Release(b.Context()))

		b.lock(b.Context(), redlock.WithRenewal())
		time.Sleep(ttl / 2)
		assert.Empty(b, b.span("redlock extend").Links(), "nothing to link to")
	})
}

func TestLossIsSeenInTheTrace(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		b.lock(ctx).Context()
		time.Sleep(ttl)
		parent.End()
		events := b.span("parent").Events()
		require.Len(b, events, 1)
		assert.Equal(b, "redlock.lost", events[0].Name)
		assert.Contains(b, attrs(events[0].Attributes), "error.type=expired")
		assert.Contains(b, attrs(events[0].Attributes), "redlock.key="+key)

		ctx, parent = b.tracer.Start(b.Context(), "parent")
		b.lock(ctx).Context()
		parent.End()
		time.Sleep(ttl)
		s := b.span("redlock lost")
		assert.Equal(b, codes.Error, s.Status().Code)
		require.Len(b, s.Links(), 1)
		assert.Equal(b, parent.SpanContext().SpanID(), s.Links()[0].SpanContext.SpanID())
	})
}

// A batch with text that is no UTF-8 is dropped whole by what exports it.
func TestKeyMayBeAnyBytes(t *testing.T) {
	inBubble(t, func(b *bed) {
		lock, err := b.rl.Mutex("orders:\xff").TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Contains(b, attrs(b.span("redlock acquire").Attributes()), "redlock.key=orders:\ufffd")
		for _, n := range b.cluster.Nodes() {
			n.FlushAll()
		}
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld)
		for _, s := range b.spans.Ended() {
			assert.True(b, utf8.ValidString(attrs(s.Attributes())), s.Name())
			for _, e := range s.Events() {
				assert.True(b, utf8.ValidString(attrs(e.Attributes)), e.Name)
			}
		}
	})
}

func TestWithoutKeys(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		lock := b.lock(ctx)
		_, err := b.rl.Mutex(key).TryAcquire(ctx)
		require.Error(b, err)
		for _, n := range b.cluster.Nodes() {
			n.Del(key)
		}
		require.Error(b, lock.Extend(ctx, ttl))
		require.Error(b, lock.Release(ctx))
		b.cluster.Node(0).Hang()
		b.cluster.Node(1).Hang()
		_, err = b.rl.Mutex(key).TryAcquire(ctx)
		require.Error(b, err)
		parent.End()
		b.cluster.Node(0).Resume()
		b.cluster.Node(1).Resume()
		time.Sleep(time.Minute)
		b.lock(ctx).Context()
		time.Sleep(ttl)
		synctest.Wait()
		spans := b.spans.Ended()
		require.Len(b, spans, 8)
		for _, s := range spans {
			text := attrs(s.Attributes()) + s.Status().Description
			for _, e := range s.Events() {
				text += attrs(e.Attributes)
			}
			assert.NotContains(b, text, key, s.Name())
		}
	}, redlockotel.WithoutKeys())
}

// collect returns all points by instrument and attributes: sums, gauges, and the count and sum of
// histograms.
func (b *bed) collect() (points map[string]float64, metrics map[string]metricdata.Metrics) {
	b.Helper()
	synctest.Wait()
	var all metricdata.ResourceMetrics
	require.NoError(b, b.reader.Collect(b.Context(), &all))
	points, metrics = make(map[string]float64), make(map[string]metricdata.Metrics)
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			metrics[m.Name] = m
			at := func(suffix string, set attribute.Set) string {
				return strings.TrimSpace(m.Name + suffix + " " + attrs(set.ToSlice()))
			}
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					points[at(" count", p.Attributes)] = float64(p.Count)
					points[at(" sum", p.Attributes)] = p.Sum
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					points[at("", p.Attributes)] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					points[at("", p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					points[at("", p.Attributes)] = float64(p.Value)
				}
			default:
				b.Fatalf("%s is %T", m.Name, d)
			}
		}
	}
	return points, metrics
}

func (b *bed) has(want map[string]float64) {
	b.Helper()
	got, _ := b.collect()
	for name, value := range want {
		assert.Contains(b, got, name)
		assert.InDelta(b, value, got[name], 1e-9, name)
	}
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(b *bed) {
		lock := b.lock(b.Context(), redlock.WithRenewal())
		b.has(map[string]float64{
			"redlock.lock.held redlock.lock.mode=exclusive":              1,
			"redlock.acquire.attempts":                                   1,
			"redlock.acquire.duration count redlock.lock.mode=exclusive": 1,
			"redlock.node.up redlock.node.name=" + b.rl.Nodes()[0]:       1,
			"redlock.node.degraded redlock.node.name=" + b.rl.Nodes()[0]: 0,
		})
		require.NoError(b, lock.Extend(b.Context(), ttl))
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.Error(b, err)
		time.Sleep(ttl/3 + time.Second)
		done := make(chan *redlock.Lock)
		go func() {
			l, err := b.rl.Mutex(key).Acquire(b.Context())
			assert.NoError(b, err)
			done <- l
		}()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		require.NoError(b, lock.Release(b.Context()))
		lock = <-done
		b.has(map[string]float64{
			"redlock.acquire.duration count redlock.lock.mode=exclusive":                 2,
			"redlock.acquire.duration sum redlock.lock.mode=exclusive":                   2,
			"redlock.acquire.duration count error.type=held redlock.lock.mode=exclusive": 1,
			"redlock.acquire.wait.duration count redlock.lock.mode=exclusive":            1,
			"redlock.acquire.wait.duration sum redlock.lock.mode=exclusive":              2,
			"redlock.extend.duration count redlock.extend.renewal=false":                 1,
			"redlock.extend.duration count redlock.extend.renewal=true":                  1,
			"redlock.release.duration count":                                             1,
			"redlock.hold.duration sum redlock.lock.mode=exclusive":                      (ttl/3 + 3*time.Second).Seconds(),
			"redlock.lock.held redlock.lock.mode=exclusive":                              1,
		})
		for _, n := range b.cluster.Nodes() {
			n.Del(key)
		}
		require.Error(b, lock.Extend(b.Context(), ttl))
		b.has(map[string]float64{
			"redlock.lock.held redlock.lock.mode=exclusive":                                  0,
			"redlock.lock.lost error.type=not_held redlock.lock.mode=exclusive":              1,
			"redlock.extend.duration count error.type=not_held redlock.extend.renewal=false": 1,
		})
		b.cluster.Node(1).Stop()
		require.NoError(b, b.lock(b.Context()).Release(b.Context()))
		time.Sleep(5 * time.Second) // it is down when no connection could be had within a node timeout
		synctest.Wait()
		node := " redlock.node.name=" + b.rl.Nodes()[1]
		b.has(map[string]float64{"redlock.node.up" + node: 0, "redlock.node.voting" + node: 1})
		b.cluster.Node(2).FlushAll()
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		time.Sleep(time.Second)
		forgot := " redlock.node.name=" + b.rl.Nodes()[2]
		b.has(map[string]float64{"redlock.node.up" + forgot: 1, "redlock.node.voting" + forgot: 0})
		time.Sleep(ttl)
		b.has(map[string]float64{"redlock.node.voting" + forgot: 1})
		points, metrics := b.collect()
		votes := 0.0
		for name, n := range points {
			if strings.HasPrefix(name, "redlock.node.votes"+node+" redlock.operation=acquire redlock.vote=") {
				votes += n
			}
		}
		assert.InDelta(b, 5, votes, 0, "one for each acquire")

		units := map[string]string{}
		for name, m := range metrics {
			assert.NotEmpty(b, m.Description, name)
			units[name] = m.Unit
		}
		assert.Equal(b, map[string]string{
			"redlock.acquire.duration": "s", "redlock.acquire.wait.duration": "s", "redlock.acquire.attempts": "{attempt}",
			"redlock.extend.duration": "s", "redlock.release.duration": "s", "redlock.hold.duration": "s",
			"redlock.lock.held": "{lock}", "redlock.lock.lost": "{lock}",
			"redlock.acquire.waiting": "{acquire}", "redlock.acquire.wait.oldest": "s",
			"redlock.node.votes": "{vote}", "redlock.node.up": "1", "redlock.node.voting": "1", "redlock.node.degraded": "1",
		}, units)
		held := metrics["redlock.lock.held"].Data.(metricdata.Sum[int64])
		assert.False(b, held.IsMonotonic)
		for name := range points {
			assert.NotContains(b, name, key, "keys have no end")
		}
	})
}

func TestMetricsOfWaitsAndModes(t *testing.T) {
	inBubble(t, func(b *bed) {
		permit, err := b.rl.Semaphore("s", 1).TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Contains(b, attrs(b.span("redlock acquire").Attributes()), "redlock.lock.mode=permit")
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := b.rl.Semaphore("s", 1).Acquire(ctx)
			done <- err
		}()
		time.Sleep(3 * time.Second)
		b.has(map[string]float64{
			"redlock.acquire.waiting redlock.lock.mode=permit":     1,
			"redlock.acquire.waiting redlock.lock.mode=exclusive":  0,
			"redlock.acquire.wait.oldest redlock.lock.mode=permit": 3,
			"redlock.lock.held redlock.lock.mode=permit":           1,
			"redlock.lock.held redlock.lock.mode=shared":           0,
		})
		require.Error(b, <-done)
		require.NoError(b, permit.Release(b.Context()))
		assert.Contains(b, attrs(b.span("redlock release").Attributes()), "redlock.lock.mode=permit")
		assert.Equal(b, "(devel)", b.span("redlock release").InstrumentationScope().Version)
		b.has(map[string]float64{
			"redlock.acquire.waiting redlock.lock.mode=permit":           0,
			"redlock.acquire.wait.oldest redlock.lock.mode=permit":       0,
			"redlock.acquire.wait.duration sum redlock.lock.mode=permit": 5,
			"redlock.hold.duration sum redlock.lock.mode=permit":         5,
			"redlock.acquire.duration count redlock.lock.mode=permit":    1,
		})
	})
}

// The times of an acquire lead to its trace.
func TestExemplars(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx, parent := b.tracer.Start(b.Context(), "parent")
		b.lock(ctx)
		_, metrics := b.collect()
		p := metrics["redlock.acquire.duration"].Data.(metricdata.Histogram[float64]).DataPoints[0]
		require.Len(b, p.Exemplars, 1)
		id := parent.SpanContext().TraceID()
		assert.Equal(b, id[:], p.Exemplars[0].TraceID)
		span := b.span("redlock acquire").SpanContext().SpanID()
		assert.Equal(b, span[:], p.Exemplars[0].SpanID)
	})
}

func TestGlobalProvidersAreTheDefault(t *testing.T) {
	defer otel.SetTracerProvider(otel.GetTracerProvider())
	defer otel.SetMeterProvider(otel.GetMeterProvider())
	spans, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	redlockotel.Hooks().Acquired(t.Context(), redlock.AcquireInfo{Key: key, Start: time.Now()})
	assert.Len(t, spans.Ended(), 1)
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	assert.NotEmpty(t, all.ScopeMetrics)

	redlockotel.Hooks(
		redlockotel.WithTracerProvider(nooptrace.NewTracerProvider()),
		redlockotel.WithMeterProvider(noopmetric.NewMeterProvider()),
	).Acquired(t.Context(), redlock.AcquireInfo{Key: key})
	assert.Len(t, spans.Ended(), 1)
}
