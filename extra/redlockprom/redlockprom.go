// Package redlockprom makes Prometheus metrics of the locks of
// github.com/quorumlock/redlock.
//
//	metrics := redlockprom.New()
//	prometheus.MustRegister(metrics)
//	rl, err := redlock.Open(ctx, addrs, &redlock.Options{Hooks: metrics.Hooks()})
//
// One Collector serves all of a process's Redlocks. To tell several sets of nodes apart, make
// one for each and register it with prometheus.WrapRegistererWith.
//
// # Metrics
//
//	redlock_acquires_total{mode,result}     acquires that ended: granted, held, no_quorum, expired, ...
//	redlock_acquire_attempts_total          rounds in which acquires asked the nodes for the lock
//	redlock_acquire_duration_seconds        of acquires that were granted, including the wait
//	redlock_acquire_wait_seconds{mode}      of acquires that waited, in the end granted or not
//	redlock_acquires_waiting{mode}          acquires that wait now
//	redlock_acquire_oldest_wait_seconds{mode}  how long the oldest of them has waited; 0 if none waits
//	redlock_extends_total{by,result}        extends by the caller or by renewal: extended, no_quorum, ...
//	redlock_extend_duration_seconds
//	redlock_releases_total{result}          released, not_held, no_quorum, ...
//	redlock_release_duration_seconds
//	redlock_hold_duration_seconds{mode}     from grant to release
//	redlock_locks_held{mode}                held and valid now; with the mode permit: permits in use
//	redlock_locks_lost_total{mode,reason}   expired, not_held: two holders are possible from then on
//	redlock_node_up{node}                   0 while the node does not answer
//	redlock_node_voting{node}               0 while it answers and its grants do not count: it restarted, or a vote lacks something
//	redlock_node_degraded{node}             1 once it has denied something that the library can do without; a restart of the program resets it
//	redlock_node_votes_total{node,operation,vote}  granted, refused, unknown, failed, not_sent, barred, pending
//	redlock_build_info{version}             1; the version of the library
//
// The mode is exclusive, shared (Mutex.Shared) or permit (Redlock.Semaphore). The result or reason
// of a failure is held, no_quorum, expired, not_held, timeout, canceled, released, closed, lost,
// duplicate_node, invalid or other; newer versions may have more.
//
// If an error has several reasons, the nodes' reason goes before the end of the caller's
// context: an acquire that timed out in an outage counts as no_quorum. A vote is pending if the
// node had not answered when the others had decided.
//
// Keys are not labels, because there may be any number of them. The operation of a vote is
// acquire, extend or release.
package redlockprom

import (
	"context"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/telemetry"
)

// Collector is a prometheus.Collector that is fed by hooks. It is made by New.
type Collector struct {
	state telemetry.State

	acquires, extends, releases, lost, votes *prometheus.CounterVec
	waitTime, holdTime                       *prometheus.HistogramVec
	attempts                                 prometheus.Counter
	build                                    prometheus.Gauge
	acquireTime, extendTime, releaseTime     prometheus.Histogram

	held, waiting, oldest, up, voting, degraded *prometheus.Desc

	vote telemetry.PerVote[prometheus.Counter] // those of votes
}

var _ prometheus.Collector = (*Collector)(nil)

// Option is a setting of New.
type Option func(*settings)

type settings struct{ buckets []float64 }

// WithBuckets sets the upper bounds of all histograms, in seconds and rising. The default
// goes from 100 microseconds to 5 minutes. New panics for bounds that do not rise.
func WithBuckets(bounds ...float64) Option {
	return func(s *settings) { s.buckets = bounds }
}

// New makes a Collector, which is to be registered once and whose Hooks are to be given to
// Redlocks. It panics for an Option that is nil.
func New(opts ...Option) *Collector {
	s := settings{buckets: telemetry.Buckets()}
	telemetry.Apply(&s, "redlockprom", "New", opts)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: s.buckets})
	}
	secondsByMode := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: s.buckets}, []string{"mode"})
	}
	byMode, byNode := []string{"mode"}, []string{"node"}
	c := &Collector{
		acquires: counters("redlock_acquires_total", "Acquires that ended, by what came of them.", "mode", "result"),
		attempts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redlock_acquire_attempts_total", Help: "Rounds in which acquires asked the nodes for the lock.",
		}),
		acquireTime: seconds("redlock_acquire_duration_seconds", "Time from the call to the grant, waiting included."),
		waitTime:    secondsByMode("redlock_acquire_wait_seconds", "Time that acquires waited because they were refused at first, granted in the end or not."),
		extends:     counters("redlock_extends_total", "Extends that ended, by the caller or by renewal, and what came of them.", "by", "result"),
		extendTime:  seconds("redlock_extend_duration_seconds", "Time that extends took, successful or not."),
		releases:    counters("redlock_releases_total", "Releases that ended, by what came of them.", "result"),
		releaseTime: seconds("redlock_release_duration_seconds", "Time that releases took, successful or not."),
		holdTime:    secondsByMode("redlock_hold_duration_seconds", "Time from the grant to the release."),
		lost:        counters("redlock_locks_lost_total", "Locks that were lost before they were released.", "mode", "reason"),
		votes:       counters("redlock_node_votes_total", "What nodes said, as known when the operation ended.", "node", "operation", "vote"),
		held:        prometheus.NewDesc("redlock_locks_held", "Locks that are held and valid.", byMode, nil),
		waiting:     prometheus.NewDesc("redlock_acquires_waiting", "Acquires that wait now.", byMode, nil),
		oldest:      prometheus.NewDesc("redlock_acquire_oldest_wait_seconds", "How long the oldest acquire has waited that waits now.", byMode, nil),
		up:          prometheus.NewDesc("redlock_node_up", "Whether the node answers.", byNode, nil),
		voting:      prometheus.NewDesc("redlock_node_voting", "Whether the node's grants count, by its last answer. A node that is down keeps what it had.", byNode, nil),
		degraded:    prometheus.NewDesc("redlock_node_degraded", "Whether the node has denied this process something that the library can do without.", byNode, nil),
		build: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "redlock_build_info", Help: "The version of the library.", ConstLabels: prometheus.Labels{"version": telemetry.Version()},
		}),
	}
	c.build.Set(1)
	c.vote.Make = func(v telemetry.Vote) prometheus.Counter {
		return c.votes.WithLabelValues(v.Node, v.Operation, telemetry.VoteWord(v.Vote))
	}
	// A counter that is not there before it counts hides its first step from rate().
	for _, mode := range telemetry.Modes() {
		for _, result := range []string{"granted", "held", "no_quorum"} {
			c.acquires.WithLabelValues(mode, result)
		}
		for _, reason := range []string{"expired", "not_held"} {
			c.lost.WithLabelValues(mode, reason)
		}
	}
	c.waitTime.WithLabelValues(string(redlock.ModeExclusive))
	c.holdTime.WithLabelValues(string(redlock.ModeExclusive))
	for _, by := range []string{byCaller, byRenewal} {
		for _, result := range []string{"extended", "no_quorum"} {
			c.extends.WithLabelValues(by, result)
		}
	}
	for _, result := range []string{"released", "not_held", "no_quorum"} {
		c.releases.WithLabelValues(result)
	}
	return c
}

const (
	byCaller  = "caller"
	byRenewal = "renewal"
)

// Hooks feed the Collector. Every call returns hooks that do the same.
func (c *Collector) Hooks() *redlock.Hooks {
	return redlock.JoinHooks(c.state.Hooks(), &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			c.acquires.WithLabelValues(string(i.Mode), result(i.Err, "granted")).Inc()
			c.attempts.Add(float64(i.Attempts))
			if i.Err == nil {
				c.acquireTime.Observe(i.Elapsed.Seconds())
			}
			if !i.WaitStart.IsZero() {
				c.waitTime.WithLabelValues(string(i.Mode)).Observe(i.Waited.Seconds())
			}
			c.count("acquire", i.Outcomes)
		},
		Extended: func(_ context.Context, i redlock.ExtendInfo) {
			by := byCaller
			if i.Renewal {
				by = byRenewal
			}
			c.extends.WithLabelValues(by, result(i.Err, "extended")).Inc()
			c.extendTime.Observe(i.Elapsed.Seconds())
			c.count("extend", i.Outcomes)
		},
		Released: func(_ context.Context, i redlock.ReleaseInfo) {
			c.releases.WithLabelValues(result(i.Err, "released")).Inc()
			c.releaseTime.Observe(i.Elapsed.Seconds())
			c.holdTime.WithLabelValues(string(i.Mode)).Observe(i.Held.Seconds())
			c.count("release", i.Outcomes)
		},
		Lost: func(_ context.Context, i redlock.LostInfo) {
			c.lost.WithLabelValues(string(i.Mode), telemetry.Reason(i.Err)).Inc()
		},
	})
}

func result(err error, success string) string {
	if err == nil {
		return success
	}
	return telemetry.Reason(err)
}

func (c *Collector) count(operation string, outcomes []redlock.Outcome) {
	for _, o := range outcomes {
		c.vote.Get(telemetry.Vote{Node: o.Node, Operation: operation, Vote: o.Vote}).Inc()
	}
}

func (c *Collector) parts() []prometheus.Collector {
	return []prometheus.Collector{
		c.acquires, c.attempts, c.acquireTime, c.waitTime, c.extends, c.extendTime,
		c.releases, c.releaseTime, c.holdTime, c.lost, c.votes, c.build,
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, p := range c.parts() {
		p.Describe(out)
	}
	for _, d := range []*prometheus.Desc{c.held, c.waiting, c.oldest, c.up, c.voting, c.degraded} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for _, p := range c.parts() {
		p.Collect(out)
	}
	held, waiting := c.state.Held(), c.state.Waiting()
	for _, mode := range telemetry.Modes() {
		out <- prometheus.MustNewConstMetric(c.held, prometheus.GaugeValue, float64(held[mode]), mode)
		out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(waiting[mode].Count), mode)
		out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, waiting[mode].Oldest.Seconds(), mode)
	}
	for _, n := range c.state.Nodes() {
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, bit(n.Up), n.Name)
		out <- prometheus.MustNewConstMetric(c.voting, prometheus.GaugeValue, bit(n.Votes), n.Name)
		out <- prometheus.MustNewConstMetric(c.degraded, prometheus.GaugeValue, bit(n.Degraded), n.Name)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
