// Package redlockotel makes OpenTelemetry spans and metrics of what the locks of
// github.com/quorumlock/redlock do.
//
//	rl, err := redlock.Open(ctx, addrs, &redlock.Options{Hooks: redlockotel.Hooks()})
//
// # Spans
//
//	redlock acquire    TryAcquire, Acquire, Adopt, and the beginning of Do and Lead; one for each
//	                   lock of a set
//	redlock wait       a child of it, from the first refusal, or from joining the wait queue,
//	                   until the last attempt began or the acquire gave up
//	redlock extend     Extend. The span of a renewal is a trace of its own with a link to the
//	                   acquire's caller: a lock may outlive the request that took it by days
//	redlock release    Release, Detach, and the end of Do and Lead
//	redlock lost       an event "redlock.lost" of the span of the acquire's caller; if that span
//	                   has ended, a trace of its own with such a link
//
// Spans are children of the span in the caller's context. They have an event "redlock.node" for
// each node's vote, and the attributes redlock.key (see WithoutKeys), redlock.lock.mode,
// redlock.acquire.attempts, redlock.extend.renewal and error.type. The status is Error for all
// failures, except if another client holds the lock. A span is made when its operation has ended,
// with the operation's times, so nothing can be its child that happens in between.
//
// # Metrics
//
//	redlock.acquire.duration       s          waiting included
//	redlock.acquire.wait.duration  s          of acquires that waited, in the end granted or not
//	redlock.acquire.waiting        {acquire}  acquires that wait now
//	redlock.acquire.wait.oldest    s          how long the oldest of them has waited; 0 if none waits
//	redlock.acquire.attempts       {attempt}  rounds in which the nodes were asked for the lock
//	redlock.extend.duration        s          redlock.extend.renewal tells whose it was
//	redlock.release.duration       s
//	redlock.hold.duration          s          from grant to release
//	redlock.lock.held              {lock}     held and valid now; with the mode permit: permits in use
//	redlock.lock.lost              {lock}     two holders are possible from then on
//	redlock.node.votes             {vote}     by redlock.node.name, redlock.operation and redlock.vote
//	redlock.node.up                1          by redlock.node.name; 0 while it does not answer
//	redlock.node.voting            1          by redlock.node.name; 0 while it answers and its grants do
//	                                          not count: it restarted, or a vote lacks something
//	redlock.node.degraded          1          by redlock.node.name; 1 once it has denied this
//	                                          process something that the library can do without
//
// What is about acquires, waits, held and lost locks has the attribute redlock.lock.mode: exclusive, shared
// (Mutex.Shared) or permit (Redlock.Semaphore). The version of the scope is that of the library.
//
// A failed operation has the attribute error.type: held, no_quorum, expired, not_held, timeout, canceled,
// released, closed, lost, duplicate_node, invalid or other; newer versions may have more. If an error has several reasons, the
// nodes' reason goes before the end of the caller's context. Keys are not attributes of metrics,
// because there may be any number of them.
package redlockotel

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/telemetry"
)

const scope = "github.com/quorumlock/redlock/extra/redlockotel"

const (
	keyAttr       = attribute.Key("redlock.key")
	modeAttr      = attribute.Key("redlock.lock.mode")
	attemptsAttr  = attribute.Key("redlock.acquire.attempts")
	renewalAttr   = attribute.Key("redlock.extend.renewal")
	nodeAttr      = attribute.Key("redlock.node.name")
	operationAttr = attribute.Key("redlock.operation")
	voteAttr      = attribute.Key("redlock.vote")
	errorTypeAttr = attribute.Key("error.type")
	messageAttr   = attribute.Key("error.message")
)

// Option is a setting of Hooks.
type Option func(*settings)

type settings struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	keys    bool
}

// WithTracerProvider makes spans with tp. The default is the global one; one of the package
// go.opentelemetry.io/otel/trace/noop turns spans off. As elsewhere in OpenTelemetry, nil changes nothing.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(s *settings) {
		if tp != nil {
			s.tracers = tp
		}
	}
}

// WithMeterProvider makes metrics with mp. The default is the global one; one of the package
// go.opentelemetry.io/otel/metric/noop turns metrics off. Nil changes nothing.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(s *settings) {
		if mp != nil {
			s.meters = mp
		}
	}
}

// WithoutKeys keeps locks' keys, and errors' texts, in which they occur, out of spans.
func WithoutKeys() Option { return func(s *settings) { s.keys = false } }

// Hooks make spans and metrics. Call it once for each MeterProvider, and give the result to
// all Redlocks: held locks and nodes are counted for each call apart. The instruments are registered for as
// long as the MeterProvider lasts; what goes wrong with them is given to otel.Handle. It panics for an Option
// that is nil.
func Hooks(opts ...Option) *redlock.Hooks {
	s := settings{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(), keys: true}
	telemetry.Apply(&s, "redlockotel", "Hooks", opts)
	version := telemetry.Version()
	t := &telescope{tracer: s.tracers.Tracer(scope, trace.WithInstrumentationVersion(version)), keys: s.keys}
	t.makeInstruments(s.meters.Meter(scope, metric.WithInstrumentationVersion(version)))
	return redlock.JoinHooks(t.state.Hooks(), &redlock.Hooks{
		Acquired: t.acquired, Extended: t.extended, Released: t.released, Lost: t.lost,
	})
}

// telescope is what looks at locks.
type telescope struct {
	tracer trace.Tracer
	keys   bool
	state  telemetry.State

	acquireTime, waitTime, extendTime, releaseTime, holdTime metric.Float64Histogram
	attempts, losses, votes                                  metric.Int64Counter
	vote                                                     telemetry.PerVote[[]metric.AddOption] // attributes of votes
	ofMode                                                   map[string]metric.MeasurementOption   // attributes of a success
}

func (t *telescope) makeInstruments(m metric.Meter) {
	seconds := func(name, description string) metric.Float64Histogram {
		return made(m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(telemetry.Buckets()...)))
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		return made(m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description)))
	}
	t.acquireTime = seconds("redlock.acquire.duration", "Time that acquires took, waiting included.")
	t.waitTime = seconds("redlock.acquire.wait.duration", "Time that acquires waited because they were refused at first.")
	t.attempts = counter("redlock.acquire.attempts", "{attempt}", "Rounds in which acquires asked the nodes for the lock.")
	t.extendTime = seconds("redlock.extend.duration", "Time that extends took.")
	t.releaseTime = seconds("redlock.release.duration", "Time that releases took.")
	t.holdTime = seconds("redlock.hold.duration", "Time from the grant to the release.")
	t.losses = counter("redlock.lock.lost", "{lock}", "Locks that were lost before they were released.")
	t.votes = counter("redlock.node.votes", "{vote}", "What nodes said, as known when the operation ended.")

	t.vote.Make = func(v telemetry.Vote) []metric.AddOption {
		return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(
			nodeAttr.String(v.Node), operationAttr.String(v.Operation), voteAttr.String(telemetry.VoteWord(v.Vote))))}
	}

	t.ofMode = make(map[string]metric.MeasurementOption)
	for _, mode := range telemetry.Modes() {
		t.ofMode[mode] = about(nil, modeAttr.String(mode))
	}

	held := made(m.Int64ObservableUpDownCounter("redlock.lock.held", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that are held and valid.")))
	waiting := made(m.Int64ObservableUpDownCounter("redlock.acquire.waiting", metric.WithUnit("{acquire}"),
		metric.WithDescription("Acquires that wait now.")))
	oldest := made(m.Float64ObservableGauge("redlock.acquire.wait.oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest acquire has waited that waits now.")))
	up := made(m.Int64ObservableGauge("redlock.node.up", metric.WithUnit("1"),
		metric.WithDescription("Whether the node answers.")))
	voting := made(m.Int64ObservableGauge("redlock.node.voting", metric.WithUnit("1"),
		metric.WithDescription("Whether the node's grants count, by its last answer. A node that is down keeps what it had.")))
	degraded := made(m.Int64ObservableGauge("redlock.node.degraded", metric.WithUnit("1"),
		metric.WithDescription("Whether the node has denied this process something that the library can do without.")))
	made(m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		holds, waits := t.state.Held(), t.state.Waiting()
		for _, mode := range telemetry.Modes() {
			with := t.ofMode[mode]
			o.ObserveInt64(held, int64(holds[mode]), with)
			o.ObserveInt64(waiting, int64(waits[mode].Count), with)
			o.ObserveFloat64(oldest, waits[mode].Oldest.Seconds(), with)
		}
		for _, n := range t.state.Nodes() {
			node := metric.WithAttributeSet(attribute.NewSet(nodeAttr.String(n.Name)))
			o.ObserveInt64(up, bit(n.Up), node)
			o.ObserveInt64(voting, bit(n.Votes), node)
			o.ObserveInt64(degraded, bit(n.Degraded), node)
		}
		return nil
	}, held, waiting, oldest, up, voting, degraded))
}

// made reports an error as OpenTelemetry's own parts do. An instrument can be used all the
// same: a program must not fail for its metrics.
func made[T any](v T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return v
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// about are attributes of metrics; an error that is not nil is one of them.
func about(err error, also ...attribute.KeyValue) metric.MeasurementOption {
	if err != nil {
		also = append(also, errorTypeAttr.String(telemetry.Reason(err)))
	}
	return metric.WithAttributeSet(attribute.NewSet(also...))
}

// mode are the attributes of what is about a lock, and of an error that is not nil.
func (t *telescope) mode(mode string, err error) metric.MeasurementOption {
	if made, ok := t.ofMode[mode]; ok && err == nil {
		return made
	}
	return about(err, modeAttr.String(mode))
}

func (t *telescope) count(ctx context.Context, operation string, outcomes []redlock.Outcome) {
	for _, o := range outcomes {
		t.votes.Add(ctx, 1, t.vote.Get(telemetry.Vote{Node: o.Node, Operation: operation, Vote: o.Vote})...)
	}
}

func (t *telescope) acquired(ctx context.Context, i redlock.AcquireInfo) {
	end := i.Start.Add(i.Elapsed)
	ctx, span := t.start(ctx, "redlock acquire", i.Key, i.Start, modeAttr.String(string(i.Mode)), attemptsAttr.Int(i.Attempts))
	round := i.Start // when the last attempt began
	if !i.WaitStart.IsZero() {
		round = i.WaitStart.Add(i.Waited)
		_, wait := t.tracer.Start(ctx, "redlock wait", trace.WithTimestamp(i.WaitStart))
		wait.End(trace.WithTimestamp(round))
		t.waitTime.Record(ctx, i.Waited.Seconds(), t.mode(string(i.Mode), nil))
	}
	t.end(span, round, end, i.Outcomes, i.Err)
	t.acquireTime.Record(ctx, i.Elapsed.Seconds(), t.mode(string(i.Mode), i.Err))
	t.attempts.Add(ctx, int64(i.Attempts))
	t.count(ctx, "acquire", i.Outcomes)
}

func (t *telescope) extended(ctx context.Context, i redlock.ExtendInfo) {
	var opts []trace.SpanStartOption
	if i.Renewal {
		opts = apart(ctx)
	}
	ctx, span := t.startWith(ctx, "redlock extend", i.Key, i.Start, opts, modeAttr.String(string(i.Mode)), renewalAttr.Bool(i.Renewal))
	t.end(span, i.Start, i.Start.Add(i.Elapsed), i.Outcomes, i.Err)
	t.extendTime.Record(ctx, i.Elapsed.Seconds(), about(i.Err, renewalAttr.Bool(i.Renewal)))
	t.count(ctx, "extend", i.Outcomes)
}

func (t *telescope) released(ctx context.Context, i redlock.ReleaseInfo) {
	ctx, span := t.start(ctx, "redlock release", i.Key, i.Start, modeAttr.String(string(i.Mode)))
	t.end(span, i.Start, i.Start.Add(i.Elapsed), i.Outcomes, i.Err)
	t.releaseTime.Record(ctx, i.Elapsed.Seconds(), about(i.Err))
	t.holdTime.Record(ctx, i.Held.Seconds(), t.mode(string(i.Mode), nil))
	t.count(ctx, "release", i.Outcomes)
}

func (t *telescope) lost(ctx context.Context, i redlock.LostInfo) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		attrs := []attribute.KeyValue{errorTypeAttr.String(telemetry.Reason(i.Err))}
		if t.keys {
			attrs = append(attrs, keyOf(i.Key), messageAttr.String(i.Err.Error()))
		}
		span.AddEvent("redlock.lost", trace.WithAttributes(attrs...))
	} else {
		now := time.Now()
		ctx, span = t.startWith(ctx, "redlock lost", i.Key, now, apart(ctx))
		t.end(span, now, now, nil, i.Err)
	}
	t.losses.Add(ctx, 1, t.mode(string(i.Mode), i.Err))
}

// keyOf is the attribute of a key, which may be any bytes.
func keyOf(key string) attribute.KeyValue { return keyAttr.String(strings.ToValidUTF8(key, "\uFFFD")) }

// apart makes a trace of its own that leads back to the caller's.
func apart(ctx context.Context) []trace.SpanStartOption {
	opts := []trace.SpanStartOption{trace.WithNewRoot()}
	if c := trace.SpanContextFromContext(ctx); c.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: c}))
	}
	return opts
}

func (t *telescope) start(ctx context.Context, name, key string, at time.Time, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	return t.startWith(ctx, name, key, at, nil, attrs...)
}

func (t *telescope) startWith(ctx context.Context, name, key string, at time.Time, opts []trace.SpanStartOption, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if t.keys {
		attrs = append(attrs, keyOf(key))
	}
	return t.tracer.Start(ctx, name, append(opts, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))...)
}

// end ends a span with what the nodes said in a round that began at the given time.
func (t *telescope) end(span trace.Span, round, end time.Time, outcomes []redlock.Outcome, err error) {
	defer span.End(trace.WithTimestamp(end))
	if !span.IsRecording() {
		return
	}
	for _, o := range outcomes {
		at := round.Add(o.Elapsed)
		if o.Vote == redlock.VotePending || at.After(end) {
			at = end
		}
		attrs := []attribute.KeyValue{nodeAttr.String(o.Node), voteAttr.String(telemetry.VoteWord(o.Vote))}
		if o.Err != nil && t.keys { // errors of scripts name the key
			attrs = append(attrs, messageAttr.String(o.Err.Error()))
		}
		span.AddEvent("redlock.node", trace.WithTimestamp(at), trace.WithAttributes(attrs...))
	}
	if err == nil {
		return
	}
	span.SetAttributes(errorTypeAttr.String(telemetry.Reason(err)))
	if errors.Is(err, redlock.ErrHeld) {
		return // an answer, and no fault
	}
	message := telemetry.Reason(err)
	if t.keys {
		message = err.Error()
	}
	span.SetStatus(codes.Error, message)
}
