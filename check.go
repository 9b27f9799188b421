package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkPatience bounds how long Check waits for a node.
const checkPatience = 3 * time.Second

// Check asks every node about things that could break locks. Each finding says what it means
// and what to do. There are findings about nodes that are down or refuse to serve us, the
// same server under two names, replicas, nodes of a cluster, eviction, persistence, replicas
// that a failover would promote, nodes that may not vote yet after they lost their data, clocks
// that differ, answers slower than Options.NodeTimeout, old versions, and permissions that the
// library needs and the user lacks. Settings that a node does not let us read are findings, too.
//
// Check asks all nodes at once. It returns when each has answered, after three seconds, when
// ctx ends or when the Redlock is closed. The Report has what was learned until then in any
// case. The error wraps ctx's error, ErrClosed, or ErrNoQuorum if no majority of nodes serves
// us; if nodes were asked, errors.As finds a *QuorumError. A Redlock that was not made by
// Open or New is ErrInvalid. Findings are no error, however severe they are; see Report.Worst.
//
// It cannot see that clients of a key use different TTLs, which the restart guard does not cover (see
// Options.RestartGuard): nodes know leases, and not for how long clients will bar a node. A client that
// waits and meets such a lease tells Hooks.Degraded.
//
// Check itself leaves nothing on the nodes. It tests permissions with commands that fail even where
// they are allowed, or whose key does not exist. Commands that are denied appear in the server's
// ACL LOG. Permissions for keys are tested with one random key behind Options.KeyPrefix only. A
// cluster or ring client has several servers, so Check only learns whether it answers at all.
func (rl *Redlock) Check(ctx context.Context) (Report, error) {
	if !rl.made() {
		return Report{}, fmt.Errorf("redlock: check: %w Redlock: it was not made by Open or New", ErrInvalid)
	}
	if rl.life.over() {
		return Report{}, fmt.Errorf("redlock: check: %w", ErrClosed)
	}
	if ctx.Err() != nil {
		return Report{}, &QuorumError{Op: "check", Need: rl.quorum, reasons: withContextErr(ctx)}
	}
	probe, err := rl.tokens.newValue("")
	if err != nil {
		return Report{}, err
	}
	start := rl.clock.Now()
	all, closed := rl.examineAll(ctx, probe[:tokenLen])
	now, s := rl.clock.Now(), rl.setup()
	ms, missing := remember(all, rl.opts.RestartGuard > 0, now)
	if rl.guard != nil {
		barring(all, ms, missing, s.guard, now, rl.guard.Changed)
	}
	report := Report{Quorum: rl.quorum, Findings: judge(all, s)}
	for _, f := range all {
		report.Nodes = append(report.Nodes, f.NodeReport)
	}
	var reasons []error
	switch {
	case ctx.Err() != nil:
		reasons = withContextErr(ctx)
	case closed:
		reasons = []error{ErrClosed}
	case countNodes(all, facts.serves) < rl.quorum:
		reasons = []error{ErrNoQuorum}
	default:
		return report, nil
	}
	outcomes := checkOutcomes(all, rl.clock.Now().Since(start))
	return report, &QuorumError{Op: "check", Need: rl.quorum, Outcomes: outcomes, reasons: reasons}
}

// examineAll asks all nodes at once, and returns what is known of each when it has answered
// or when waiting is over. closed: the Redlock was closed meanwhile.
func (rl *Redlock) examineAll(ctx context.Context, probe string) (all []facts, closed bool) {
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	// go-redis does not look at a context while it reads, so a hung node's goroutine is
	// left to end by the read's own timeout.
	updates := make([]chan facts, len(rl.clients))
	for i, c := range rl.clients {
		updates[i] = make(chan facts, examinerSteps)
		e := examiner{clock: rl.clock, prefix: rl.opts.KeyPrefix, mark: markKeyOf(&rl.opts), probe: probe, updates: updates[i]}
		e.Node = rl.names[i]
		go e.examine(asking, c)
	}
	for i := range updates {
		last, c := latest(asking, rl.life.closing, updates[i], rl.names[i])
		all, closed = append(all, last), closed || c
	}
	if end, ok := ctx.Deadline(); ok && !rl.clock.Now().Time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}
	return all, closed
}

// examine asks step by step, and updates after each: a node that hangs later has been
// examined so far. It closes updates at its end.
func (e *examiner) examine(ctx context.Context, c redis.UniversalClient) {
	defer close(e.updates)
	switch single := c.(type) {
	case *redis.ClusterClient, *redis.Ring:
		e.many = true
	case *redis.Client:
		o := *single.Options()
		o.MaxRetries, o.ReadTimeout, o.WriteTimeout = -1, checkPatience, checkPatience
		c = redis.NewClient(&o)
		defer c.Close() // a pool would keep the connection
	}
	if !e.ping(ctx, c) || e.many {
		if e.many {
			e.Unread = []string{"all but PING: there are several servers behind this client"}
		}
		e.update()
		return
	}
	e.time(ctx, c)
	e.update()
	e.read(ctx, c)
	e.update()
	e.rights(ctx, c)
	e.update()
	e.subscribe(ctx, c)
	e.update()
}

// latest returns the last update about a node: when its examiner is done, when waiting for it
// is over, or when the Redlock is closed.
func latest(asking context.Context, closing <-chan struct{}, updates <-chan facts, name string) (last facts, closed bool) {
	last.NodeReport = NodeReport{Node: name, Err: fmt.Errorf("no answer within %v", checkPatience)}
	for {
		// Updates come first: one that is there is taken even if waiting is over.
		select {
		case f, more := <-updates:
			if !more {
				return last, false
			}
			last = f
			continue
		default:
		}
		select {
		case f, more := <-updates:
			if !more {
				return last, false
			}
			last = f
		case <-asking.Done():
			last.cut = true
			return last, false
		case <-closing:
			last.cut = true
			return last, true
		}
	}
}

// checkOutcomes are the nodes as a QuorumError names them. waited is how long those that
// gave no answer were waited for.
func checkOutcomes(all []facts, waited time.Duration) []Outcome {
	outcomes := make([]Outcome, len(all))
	for i, f := range all {
		o := Outcome{Node: f.Node, Vote: VoteGranted, Err: f.Err, Elapsed: waited}
		switch {
		case f.Err == nil:
			o.Elapsed = f.Latency
		case f.Reachable:
			o.Vote = VoteFailed
		default:
			o.Vote = VoteNotSent
		}
		outcomes[i] = o
	}
	return outcomes
}
