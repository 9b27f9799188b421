package lane_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/tick"
)

// hold has locks on the bench's node.
func (b *bench) hold(n int) (sets []*lane.Call) {
	for i := range n {
		set := b.call(protocol.OpAcquire, fmt.Sprint("k", i))
		set.Req.KeepFor, set.Req.Key = time.Hour, fmt.Sprint("k", i)
		b.lane.Enqueue(set, b.now())
		sets = append(sets, set)
	}
	b.Sent()
	return sets
}

// releaseAll releases locks whose keys live on for KeepFor.
func (b *bench) releaseAll(sets []*lane.Call, keepFor time.Duration) (all []*lane.Call) {
	for _, set := range sets {
		c := b.call(protocol.OpRelease, set.Req.Value)
		c.Req.KeepFor, c.Req.Key = keepFor, set.Req.Key
		c.Caller, c.Deadline, c.Set = nil, 0, set
		b.lane.TakeBack(c, b.now())
		all = append(all, c)
	}
	synctest.Wait()
	return all
}

// counter tells how many batches and requests were sent since it was last asked.
func (b *bench) counter() func() (batches, requests int) {
	seen := len(b.Sent())
	return func() (batches, requests int) {
		all := b.Sent()
		for _, names := range all[seen:] {
			batches++
			requests += len(names)
		}
		seen = len(all)
		return batches, requests
	}
}

func (b *bench) delivered(all []*lane.Call) (n int) {
	for _, c := range all {
		if b.state(c) == lane.CallDone && c.Kind == protocol.Granted {
			n++
		}
	}
	return n
}

var failsForNow = map[string]protocol.Answer{
	"READONLY": {Said: lanetest.ServerError("READONLY You can't write against a read only replica."), Sent: true},
	"MISCONF":  {Said: lanetest.ServerError("MISCONF Redis is configured to save RDB snapshots"), Sent: true},
	"BUSY":     {Said: lanetest.ServerError("BUSY Redis is busy running a script."), Sent: true},
	"no link":  lanetest.Refused,
	"reset":    lanetest.Lost,
}

// A node that is away, or fails, when a lock is acquired has nothing of it, so nothing is kept there for the release that is
// sent to it all the same: to serve its queue, or to hear whether it keeps the lock for WithMinHold.
func TestNothingIsKeptWhereNothingWasLeft(t *testing.T) {
	for name, answer := range failsForNow {
		if answer == lanetest.Lost {
			continue // its SET may have taken effect
		}
		onBench(t, func(b *bench) {
			b.Reply = func(string, bool) protocol.Answer { return answer }
			var waits []*lane.Call
			for i := range 100 {
				set := b.send(protocol.OpAcquire, fmt.Sprint(i))
				rel := b.call(protocol.OpRelease, fmt.Sprint(i))
				rel.Req.KeepFor, rel.Set, rel.When = time.Hour, set, lane.QueueWaits
				b.lane.TakeBack(rel, b.now())
				waits = append(waits, rel)
				lanetest.Rest(benchTimeout / 10)
			}
			assert.Zero(b, b.keeps(), name)
			for _, c := range waits {
				assert.True(b, lastTold(c).Final, name)
				assert.Error(b, lastTold(c).Err(), name)
			}
			b.Reply = nil
			lanetest.Rest(time.Minute)
			b.empty()
		})
	}
}

// Scenario 88: however many releases wait for a node that fails them, or that cannot be
// reached, it is asked a few times a second; and all are delivered when it is back.
func TestReleasesThatWaitForANodeCostLittle(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	locks, outage := 4000, hour/4
	if longtest.On() {
		locks, outage = 20_000, hour
	}
	for name, answer := range failsForNow {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(b *bench) {
				sets := b.hold(locks)
				counted := b.counter()
				b.Answers(func(string, bool) protocol.Answer { return answer })
				all := b.releaseAll(sets, 2*hour)
				_, first := counted()
				assert.LessOrEqual(b, first, locks+10)
				time.Sleep(10 * time.Second)
				counted()
				time.Sleep(outage)
				batches, requests := counted()
				perSecond := float64(requests) / outage.Seconds()
				assert.Less(b, perSecond, 5.0)
				assert.Greater(b, perSecond, 3.0, "or it is found late that the node is back")
				assert.Equal(b, requests, batches, "one at a time")

				b.Answers(nil)
				time.Sleep(lane.MaxBackoff)
				synctest.Wait()
				assert.Equal(b, locks, b.delivered(all), "within a pause")
				_, requests = counted()
				assert.Equal(b, locks, requests, "each once")
				b.empty()
			})
		})
	}
}

// A node that fails answers all the same. What is sent to it meanwhile must not have the
// releases sent again each time.
func TestOtherAnswersDoNotResendWhatFailed(t *testing.T) {
	onBench(t, func(b *bench) {
		sets := b.hold(1000)
		counted := b.counter()
		var asked atomic.Int32
		b.Answers(func(name string, _ bool) protocol.Answer {
			if asked.Add(1) > 10_000 { // or a lane that sends them again all the time would never come to an end
				return lanetest.Refused
			}
			return failsForNow["READONLY"]
		})
		b.releaseAll(sets, time.Hour)
		time.Sleep(10 * time.Second)
		counted()
		for range 1000 {
			b.send(protocol.OpAcquire, "other")
			time.Sleep(time.Millisecond)
		}
		_, requests := counted()
		assert.InDelta(b, 1004, requests, 2)
	})
}

// One release that fails for a reason of its own holds up none of the others.
func TestOneReleaseThatFailsHoldsUpNoOther(t *testing.T) {
	onBench(t, func(b *bench) {
		sets := b.hold(100)
		counted := b.counter()
		failing := true
		b.Answers(func(name string, _ bool) protocol.Answer {
			if failing || name == "k0release" {
				return failsForNow["BUSY"]
			}
			return protocol.Answer{}
		})
		all := b.releaseAll(sets, time.Hour)
		time.Sleep(time.Minute)
		b.Mu.Lock()
		failing = false
		b.Mu.Unlock()
		time.Sleep(3 * lane.MaxBackoff)
		synctest.Wait()
		assert.Equal(b, 99, b.delivered(all))
		counted()
		time.Sleep(time.Minute)
		_, requests := counted()
		assert.Less(b, requests, 5*60, "and it is not sent without a pause")
		b.Answers(nil)
		time.Sleep(lane.MaxBackoff)
		synctest.Wait()
		assert.Equal(b, 100, b.delivered(all))
		b.empty()
	})
}

// Nothing is forgotten before its key is gone by itself, and nothing is kept after that.
func TestReleasesAreKeptUntilTheirKeysAreGone(t *testing.T) {
	for name, answer := range failsForNow {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				sets := b.hold(2000)
				b.Answers(func(string, bool) protocol.Answer { return answer })
				var brief, long []*lane.Call
				for i, set := range sets { // mixed, so that neither is only at the head
					if i%2 == 0 {
						brief = append(brief, b.releaseAll(sets[i:i+1], time.Minute)...)
					} else {
						long = append(long, b.releaseAll([]*lane.Call{set}, time.Hour)...)
					}
				}
				time.Sleep(time.Minute - time.Second)
				assert.GreaterOrEqual(b, b.keeps(), 1999)
				time.Sleep(3 * time.Second)
				assert.LessOrEqual(b, b.keeps(), 1000)
				assert.GreaterOrEqual(b, b.keeps(), 999)
				for _, c := range brief {
					require.Equal(b, lane.CallDone, b.state(c))
				}
				b.Answers(nil)
				time.Sleep(2 * lane.MaxBackoff)
				synctest.Wait()
				assert.Equal(b, 1000, b.delivered(long))
				b.empty()
			})
		})
	}
}

// A server that hangs for longer than the lease sets the key when it wakes, and the lease begins then: so the release
// of a SET without an answer is kept for as long as its request may lie there.
func TestReleaseOutlivesTheLeaseWhileItsSetMayLand(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Answers(func(string, bool) protocol.Answer { return lanetest.Lost })
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		rel := b.release(set, "a")
		time.Sleep(lane.LongestRead)
		assert.Equal(b, lane.CallKept, b.state(rel))
		b.Answers(nil)
		time.Sleep(lane.MaxBackoff)
		synctest.Wait()
		assert.Equal(b, protocol.Granted, rel.Kind)
		b.empty()
	})
}

// Behind a batch that hangs releases queue up. When the node turns out to be gone, they
// wait as well, instead of being tried batch after batch.
func TestReleasesThatQueuedUpWaitForTheNode(t *testing.T) {
	onBench(t, func(b *bench) {
		sets := b.hold(5000)
		counted := b.counter()
		b.Gate = make(chan struct{})
		b.send(protocol.OpExtend, "out")
		time.Sleep(2 * benchTimeout)
		all := b.releaseAll(sets, time.Hour)
		rel := b.call(protocol.OpRelease, "waits")
		rel.Req.KeepFor = time.Hour
		b.lane.Enqueue(rel, b.now())
		counted()
		b.Answers(func(string, bool) protocol.Answer { return lanetest.Refused })
		b.Mu.Lock()
		close(b.Gate)
		b.Gate = nil
		b.Mu.Unlock()
		synctest.Wait()
		batches, _ := counted()
		assert.LessOrEqual(b, batches, 2)
		assert.Equal(b, protocol.NotSent, lastTold(rel).Kind)
		time.Sleep(10 * time.Second)
		batches, requests := counted()
		assert.Equal(b, requests, batches)
		assert.Less(b, requests, 60)
		b.Answers(nil)
		time.Sleep(lane.MaxBackoff)
		synctest.Wait()
		assert.Equal(b, 5000, b.delivered(all))
		assert.Equal(b, protocol.Granted, lastTold(rel).Kind)
		b.empty()
	})
}

// Releases that are to be sent a second time leave in the order of their times, none of them early.
func TestSecondReleasesLeaveInTheOrderOfTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tick.NewSystem()
		var k lane.KeptReleases
		var left []time.Duration
		var mu sync.Mutex // in the place of the lane's
		began := c.Now().Mono
		k.Alarm = &tick.Alarm{Clock: c, F: func() {
			mu.Lock()
			defer mu.Unlock()
			k.Alarm.Rang()
			now := c.Now().Mono
			for list := k.Due(now); !list.Empty(); list.Pop() {
				left = append(left, time.Duration(now-began))
			}
		}}
		for _, timeout := range []time.Duration{3, 1, 2, 5, 4, 2} {
			r := &lane.Call{Req: &protocol.Request{Timeout: timeout * time.Second, KeepFor: time.Hour}}
			mu.Lock()
			kept := k.Postpone(r, c.Now().Mono)
			mu.Unlock()
			require.True(t, kept)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}, left)
		require.Empty(t, k.Later)
	})
}

// Whatever the order in a script, one that failed may have done a part, so it is released.
// Errors that come before a script does anything need no release: a node that answers them
// would be asked twice as often.
func TestReleaseOfAScriptThatFailed(t *testing.T) {
	for answer, released := range map[string]bool{
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                               true,
		"ERR ACL failure in script: No permissions to access a key script: d8f2, on @user_script:30.":                                   true,
		"ERR Error running script (call to f_d8f2): @user_script:3: The user executing the script can't run this command or subcommand": true,
		"ERR something that nobody has heard of":                                                                                        true,
		"READONLY You can't write against a read only replica. script: d8f2, on @user_script:30.":                                       false,
		"ERR Error running script (call to f_d8f2): @user_script:3: -READONLY You can't write against a read only replica.":             false,
		"MISCONF Redis is configured to save RDB snapshots":                                                                             false,
		"OOM command not allowed when used memory > 'maxmemory'.":                                                                       false,
		"BUSY Redis is busy running a script.":                                                                                          false,
		"LOADING Redis is loading the dataset in memory":                                                                                false,
		"NOAUTH Authentication required.":                                                                                               false,
		"BADFENCE the fencing counter has reached its end":                                                                              false,
		"MOVED 1 127.0.0.1:7001": false,
	} {
		onBench(t, func(b *bench) {
			b.Reply = func(name string, _ bool) protocol.Answer {
				if name == "aacquire" {
					return protocol.Answer{Said: lanetest.ServerError(answer), Sent: true}
				}
				return protocol.Answer{}
			}
			set := b.call(protocol.OpAcquireFenced, "a")
			set.Req.Script = protocol.FenceScript
			b.lane.Enqueue(set, b.now())
			synctest.Wait()
			require.Equal(b, protocol.Failed, lastTold(set).Kind)
			b.release(set, "a")
			assert.Equal(b, released, len(b.Sent()) == 2, "%s: %v", answer, b.Sent())
			b.empty()
		})
	}
	onBench(t, func(b *bench) { // a plain SET is one step
		b.Reply = func(string, bool) protocol.Answer {
			return protocol.Answer{Said: lanetest.ServerError("NOPERM"), Sent: true}
		}
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		assert.Len(b, b.Sent(), 1)
	})
}
