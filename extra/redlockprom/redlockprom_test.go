package redlockprom_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockprom"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/lockset"
	"github.com/quorumlock/redlock/redlocktest"
)

const (
	ttl = 10 * time.Second
	key = "orders:42"
)

// bed is a Redlock over three fake nodes, in virtual time, whose metrics are registered.
type bed struct {
	*testing.T
	cluster  *redlocktest.Cluster
	rl       *redlock.Redlock
	registry *prometheus.Registry
}

func inBubble(t *testing.T, metrics *redlockprom.Collector, test func(b *bed)) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		b := &bed{T: t, cluster: c, registry: prometheus.NewPedanticRegistry()}
		b.registry.MustRegister(metrics)
		var err error
		b.rl, err = redlock.New(b.cluster.Clients(), &redlock.Options{Hooks: metrics.Hooks()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.rl.Close() })
		test(b)
	})
}

func (b *bed) lock(opts ...redlock.LockOption) *redlock.Lock {
	b.Helper()
	l, err := b.rl.Mutex(key, opts...).TryAcquire(b.Context())
	require.NoError(b, err)
	synctest.Wait()
	return l
}

func (b *bed) cycle() {
	b.Helper()
	require.NoError(b, b.lock().Release(b.Context()))
	synctest.Wait()
}

// fetch gets the text of a scrape, over HTTP. Its server lasts no longer, since time stands
// still in a bubble while somebody listens.
func (b *bed) fetch() string {
	b.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(b.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(server.URL)
	require.NoError(b, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, resp.StatusCode, "%s", text)
	return string(text)
}

// scrape returns the samples by name and labels, "x{a="b"}", histograms as _count and _sum.
func (b *bed) scrape() map[string]float64 {
	b.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(b.fetch()))
	require.NoError(b, err)
	samples := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			at := ""
			if labels != nil {
				at = "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.Histogram != nil:
				samples[name+"_count"+at] = float64(m.Histogram.GetSampleCount())
				samples[name+"_sum"+at] = m.Histogram.GetSampleSum()
			default:
				samples[name+at] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return samples
}

func (b *bed) has(want map[string]float64) {
	b.Helper()
	synctest.Wait()
	got := b.scrape()
	for name, value := range want {
		assert.Contains(b, got, name)
		assert.InDelta(b, value, got[name], 1e-9, name)
	}
}

func TestScrape(t *testing.T) {
	inBubble(t, redlockprom.New(), func(b *bed) {
		b.has(map[string]float64{
			`redlock_acquires_total{mode="exclusive",result="granted"}`:   0,
			`redlock_acquires_total{mode="exclusive",result="no_quorum"}`: 0,
			`redlock_locks_lost_total{mode="exclusive",reason="expired"}`: 0,
			`redlock_locks_held{mode="exclusive"}`:                        0,
		})
		b.cycle()
		b.has(map[string]float64{
			`redlock_acquires_total{mode="exclusive",result="granted"}`: 1,
			`redlock_acquire_attempts_total`:                            1,
			`redlock_acquire_duration_seconds_count`:                    1,
			`redlock_acquire_wait_seconds_count{mode="exclusive"}`:      0,
			`redlock_releases_total{result="released"}`:                 1,
			`redlock_release_duration_seconds_count`:                    1,
			`redlock_node_up{node="` + b.rl.Nodes()[0] + `"}`:           1,
			`redlock_node_voting{node="` + b.rl.Nodes()[0] + `"}`:       1,
			`redlock_node_degraded{node="` + b.rl.Nodes()[2] + `"}`:     0,
		})

		lock := b.lock(redlock.WithRenewal())
		b.has(map[string]float64{`redlock_locks_held{mode="exclusive"}`: 1})
		require.NoError(b, lock.Extend(b.Context(), ttl))
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
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
			`redlock_extends_total{by="caller",result="extended"}`:      1,
			`redlock_extends_total{by="renewal",result="extended"}`:     1,
			`redlock_extend_duration_seconds_count`:                     2,
			`redlock_acquires_total{mode="exclusive",result="granted"}`: 3,
			`redlock_acquires_total{mode="exclusive",result="held"}`:    1,
			`redlock_acquire_wait_seconds_count{mode="exclusive"}`:      1,
			`redlock_acquire_wait_seconds_sum{mode="exclusive"}`:        2,
			`redlock_acquire_duration_seconds_count`:                    3,
			`redlock_acquire_duration_seconds_sum`:                      2,
			`redlock_hold_duration_seconds_count{mode="exclusive"}`:     2,
			`redlock_hold_duration_seconds_sum{mode="exclusive"}`:       (ttl/3 + 3*time.Second).Seconds(),
			`redlock_locks_held{mode="exclusive"}`:                      1,
		})

		for _, n := range b.cluster.Nodes() {
			n.Del(key)
		}
		require.Error(b, lock.Extend(b.Context(), ttl))
		require.Error(b, lock.Release(b.Context()))
		b.lock().Context()
		time.Sleep(ttl)
		b.has(map[string]float64{
			`redlock_locks_lost_total{mode="exclusive",reason="not_held"}`: 1,
			`redlock_locks_lost_total{mode="exclusive",reason="expired"}`:  1,
			`redlock_extends_total{by="caller",result="not_held"}`:         1,
			`redlock_releases_total{result="not_held"}`:                    1,
			`redlock_locks_held{mode="exclusive"}`:                         0,
		})
	})
}

func TestScrapeOfWaitsAndModes(t *testing.T) {
	inBubble(t, redlockprom.New(), func(b *bed) {
		b.has(map[string]float64{
			`redlock_acquires_waiting{mode="permit"}`:               0,
			`redlock_acquire_oldest_wait_seconds{mode="exclusive"}`: 0,
			`redlock_build_info{version="(devel)"}`:                 1,
		})
		permit, err := b.rl.Semaphore("s", 1).TryAcquire(b.Context())
		require.NoError(b, err)
		lock := b.lock(redlock.WithRenewal())
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for _, m := range []lockset.Member{b.rl.Mutex(key), b.rl.Mutex(key), b.rl.Mutex(key).Shared(), b.rl.Semaphore("s", 1)} {
			all.Go(func() { _ = lockset.New(m).Do(ctx, func(context.Context, lockset.Locks) error { return nil }) })
		}
		time.Sleep(3 * time.Second)
		b.has(map[string]float64{
			`redlock_locks_held{mode="exclusive"}`:               1,
			`redlock_locks_held{mode="shared"}`:                  0,
			`redlock_locks_held{mode="permit"}`:                  1,
			`redlock_acquires_waiting{mode="exclusive"}`:         2,
			`redlock_acquires_waiting{mode="shared"}`:            1,
			`redlock_acquires_waiting{mode="permit"}`:            1,
			`redlock_acquire_oldest_wait_seconds{mode="shared"}`: 3,
		})
		require.NoError(b, permit.Release(b.Context()))
		require.NoError(b, lock.Release(b.Context()))
		all.Wait()
		b.has(map[string]float64{
			`redlock_acquires_waiting{mode="exclusive"}`:             0,
			`redlock_acquires_waiting{mode="permit"}`:                0,
			`redlock_acquire_oldest_wait_seconds{mode="shared"}`:     0,
			`redlock_acquires_total{mode="permit",result="granted"}`: 2,
			`redlock_acquire_wait_seconds_count{mode="permit"}`:      1,
			`redlock_hold_duration_seconds_count{mode="permit"}`:     2,
			`redlock_hold_duration_seconds_count{mode="shared"}`:     1,
		})
	})
}

func TestScrapeOfNodes(t *testing.T) {
	inBubble(t, redlockprom.New(), func(b *bed) {
		b.cycle()
		first, last := b.rl.Nodes()[0], b.rl.Nodes()[2]
		b.cluster.Node(0).Stop()
		b.cycle()
		time.Sleep(time.Second)
		synctest.Wait() // it is down when no connection could be had within a node timeout
		b.has(map[string]float64{
			`redlock_node_up{node="` + first + `"}`: 0,
			`redlock_node_up{node="` + last + `"}`:  1,
		})
		votes := func() (n float64) {
			for name, value := range b.scrape() {
				if strings.HasPrefix(name, `redlock_node_votes_total{node="`+last+`",operation="acquire"`) {
					n += value
				}
			}
			return n
		}
		assert.InDelta(b, 2, votes(), 0, "one for each acquire, whatever it was")

		b.cluster.Node(2).Stop()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		_, err := b.rl.Mutex(key).Acquire(ctx)
		require.Error(b, err)
		b.has(map[string]float64{`redlock_acquires_total{mode="exclusive",result="no_quorum"}`: 1})
		samples := b.scrape()
		assert.Positive(b, samples[`redlock_node_votes_total{node="`+first+`",operation="acquire",vote="not_sent"}`])
		assert.Greater(b, samples[`redlock_acquire_attempts_total`], 3.0)
		assert.InDelta(b, 3, votes(), 0)
		b.cluster.Node(0).Restart(redlocktest.KeepKeys)
		b.cluster.Node(2).Restart(redlocktest.KeepKeys)
		// Nothing was left to send to them, so the next attempt that reaches them finds out that they
		// are other processes now, whose votes count after a TTL.
		time.Sleep(time.Second)
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		time.Sleep(time.Second)
		b.has(map[string]float64{
			`redlock_node_up{node="` + first + `"}`:     1,
			`redlock_node_voting{node="` + first + `"}`: 0,
			`redlock_node_voting{node="` + last + `"}`:  0,
		})
		time.Sleep(time.Minute)
		b.has(map[string]float64{`redlock_node_voting{node="` + first + `"}`: 1})
		b.cycle()
		b.has(map[string]float64{
			`redlock_node_up{node="` + first + `"}`: 1,
			`redlock_node_up{node="` + last + `"}`:  1,
		})
	})
}

// No label but these: keys, tokens and errors have no end.
func TestLabels(t *testing.T) {
	inBubble(t, redlockprom.New(), func(b *bed) {
		b.cycle()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(b.fetch()))
		require.NoError(b, err)
		labels := make(map[string]bool)
		for name, f := range families {
			assert.True(b, strings.HasPrefix(name, "redlock_"), name)
			for _, m := range f.Metric {
				for _, l := range m.Label {
					labels[l.GetName()] = true
					assert.NotContains(b, l.GetValue(), key)
				}
			}
		}
		for l := range maps.Keys(labels) {
			assert.Contains(b, []string{"result", "reason", "by", "node", "operation", "vote", "mode", "version"}, l)
		}
		problems, err := promlint.New(strings.NewReader(b.fetch())).Lint()
		require.NoError(b, err)
		assert.Empty(b, problems)
	})
}

func TestBuckets(t *testing.T) {
	inBubble(t, redlockprom.New(redlockprom.WithBuckets(1, 2)), func(b *bed) {
		b.cycle()
		text := b.fetch()
		assert.Contains(b, text, `redlock_acquire_duration_seconds_bucket{le="1"} 1`)
		assert.Contains(b, text, `redlock_acquire_duration_seconds_bucket{le="2"} 1`)
		assert.NotContains(b, text, `le="0.1"`)
	})
	assert.Panics(t, func() { redlockprom.New(redlockprom.WithBuckets(2, 1)) })
	assert.PanicsWithValue(t, "redlockprom: option 2 of New is nil: must be an Option", func() { redlockprom.New(redlockprom.WithBuckets(1, 2), nil) })
}

// One Collector for several Redlocks, used at the same time and scraped meanwhile.
func TestSeveralRedlocks(t *testing.T) {
	metrics := redlockprom.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	cluster := redlocktest.NewCluster(t, 3)
	const redlocks, cycles = 4, 20
	var all sync.WaitGroup
	for range redlocks {
		rl, err := redlock.New(cluster.Clients(), &redlock.Options{Hooks: metrics.Hooks()})
		require.NoError(t, err)
		defer rl.Close()
		all.Go(func() {
			for range cycles {
				assert.NoError(t, rl.Mutex(key).Do(t.Context(), func(context.Context, *redlock.Lock) error {
					_, err := registry.Gather()
					return err
				}))
			}
		})
	}
	all.Wait()
	b := &bed{T: t, registry: registry}
	samples := b.scrape()
	assert.InDelta(t, redlocks*cycles, samples[`redlock_acquires_total{mode="exclusive",result="granted"}`], 0)
	assert.InDelta(t, 0, samples[`redlock_locks_held{mode="exclusive"}`], 0)
}
