package lane_test

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
	"github.com/quorumlock/redlock/internal/tick"
)

// bench is a lane over a wire whose replies a test scripts.
type bench struct {
	*testing.T
	*lanetest.ScriptedWire
	lane  *lane.Lane
	downs []string
}

func onBench(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, ScriptedWire: lanetest.NewScriptedWire()}
		b.lane = lane.New(b.ScriptedWire, tick.NewSystem(), func(down bool, err error) {
			b.Mu.Lock()
			defer b.Mu.Unlock()
			b.downs = append(b.downs, fmt.Sprint(down))
		})
		// Whatever the exchanges take, the link is a short one: one batch at a time.
		b.lane.Flight.RTT = lane.Shortest{Before: time.Microsecond, Since: math.MaxInt64}
		test(b)
		time.Sleep(time.Hour) // nothing may go on for ever
		b.Mu.Lock()
		defer b.Mu.Unlock()
		assert.LessOrEqual(t, b.Most, 1, "batches that are out at once")
	})
}

// changes are what was told of the node since it was looked at last.
func (b *bench) changes() (all []string) {
	synctest.Wait()
	b.Mu.Lock()
	defer b.Mu.Unlock()
	all, b.downs = b.downs, nil
	return all
}

// lostSet is a node whose answer to the SET of a is lost, and which then finds nothing to release.
func lostSet(name string, _ bool) protocol.Answer {
	if name == "aacquire" {
		return lanetest.Lost
	}
	return lanetest.Zero
}

func (b *bench) now() int64 { return b.lane.Clock.Now().Mono }

const (
	benchTTL     = time.Second
	benchTimeout = 20 * time.Millisecond
)

// call makes a call with a caller of its own.
func (b *bench) call(k protocol.Op, name string) *lane.Call {
	req := &protocol.Request{Op: k, Key: name, Value: name, Timeout: benchTimeout, ReadBound: benchTTL, KeepFor: benchTTL}
	if !k.Sets() {
		req.Script = protocol.ReleaseScript
		req.Key = "key"
	}
	return b.asks(req)
}

func (b *bench) asks(req *protocol.Request) *lane.Call {
	return &lane.Call{Req: req, Caller: new(asker), Deadline: b.now() + int64(req.Timeout)}
}

// asker waits for one node.
type asker struct {
	mu   sync.Mutex
	last protocol.Answer
	slow chan struct{} // if set, it takes its final answer only then
}

func (a *asker) Deliver(_ int, b protocol.Answer, _ int64) {
	a.mu.Lock()
	if !a.last.Final {
		a.last = b
	}
	a.mu.Unlock()
	if b.Final && a.slow != nil {
		<-a.slow
	}
}

func (b *bench) send(k protocol.Op, name string) *lane.Call {
	c := b.call(k, name)
	b.lane.Enqueue(c, b.now())
	return c
}

// release takes a SET back, with nobody waiting, as after a failed attempt.
func (b *bench) release(set *lane.Call, name string) *lane.Call {
	c := b.call(protocol.OpRelease, name)
	c.Caller, c.Deadline, c.Set = nil, 0, set
	b.lane.TakeBack(c, b.now())
	return c
}

// lastTold is what the caller was told last.
func lastTold(c *lane.Call) protocol.Answer {
	a := c.Caller.(*asker)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func (b *bench) state(c *lane.Call) lane.CallState {
	b.lane.Mu.Lock()
	defer b.lane.Mu.Unlock()
	return c.State
}

func (b *bench) keeps() int {
	_, kept := b.lane.Load()
	return kept
}

func (b *bench) empty() {
	b.Helper()
	assert.Zero(b, b.keeps())
	b.lane.Mu.Lock()
	defer b.lane.Mu.Unlock()
	assert.Zero(b, b.lane.Queue)
	assert.Empty(b, b.lane.Flight.Out)
	assert.False(b, b.lane.Starting)
}

func TestLaneKeepsOrderAndBatches(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Takes = benchTimeout / 10
		b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		for i := range 1200 {
			b.send(protocol.OpAcquire, fmt.Sprint(i))
		}
		time.Sleep(b.Takes * 3 / 2)
		sent := b.Sent()
		require.Len(b, sent, 2)
		assert.Equal(b, []string{"firstacquire"}, sent[0], "an idle lane sends at once")
		assert.Len(b, sent[1], lane.MostInBatch)
		for i, name := range sent[1] {
			require.Equal(b, fmt.Sprint(i, "acquire"), name)
		}
		time.Sleep(100 * time.Millisecond)
		b.empty()
	})
}

func TestLaneDropsWhatWaitedTooLong(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		first := b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		second := b.send(protocol.OpAcquire, "second")
		time.Sleep(benchTimeout)
		synctest.Wait()
		assert.Equal(b, protocol.Unknown, lastTold(first).Kind)
		assert.False(b, lastTold(first).Final)
		assert.Equal(b, protocol.NotSent, lastTold(second).Kind)
		assert.True(b, lastTold(second).Final, "it was never sent and never will be")
		assert.Equal(b, lane.ErrTooLate, lastTold(second).Err())
		third := b.send(protocol.OpAcquire, "third")
		assert.Equal(b, lane.ErrOverdue, lastTold(third).Err(), "the circuit is open")
		assert.Equal(b, protocol.NotSent, lastTold(b.send(protocol.OpExtend, "fourth")).Kind)
		close(b.Gate)
		assert.Equal(b, [][]string{{"firstacquire"}}, b.Sent())
		assert.Equal(b, protocol.Granted, lastTold(first).Kind, "late, but an answer")
		b.empty()
		b.Gate = nil
		assert.Equal(b, []string{"fifthacquire"}, func() []string { b.send(protocol.OpAcquire, "fifth"); return b.Sent()[1] }())
		assert.Equal(b, []string{"true", "false"}, b.downs)
	})
}

func TestLaneWaitsForALateReplyAsLongAsTheTTL(t *testing.T) {
	onBench(t, func(b *bench) {
		b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		long := b.call(protocol.OpAcquire, "b")
		long.Req.ReadBound = time.Hour
		b.lane.Enqueue(long, b.now())
		synctest.Wait()
		brief := b.call(protocol.OpAcquire, "c")
		brief.Req.ReadBound = time.Millisecond
		b.lane.Enqueue(brief, b.now())
		synctest.Wait()
		assert.Equal(b, benchTTL, b.Batches[0].Bound)
		assert.Equal(b, lane.LongestRead, b.Batches[1].Bound)
		assert.Equal(b, benchTimeout, b.Batches[2].Bound, "and never shorter than the timeout")
	})
}

func TestLaneDropsASetThatWaitsTogetherWithItsRelease(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		second := b.send(protocol.OpAcquire, "second")
		rel := b.release(second, "second")
		assert.Equal(b, lane.ErrMoot, lastTold(second).Err())
		assert.True(b, lastTold(second).Final)
		assert.Equal(b, lane.CallDropped, b.state(rel))
		close(b.Gate)
		assert.Equal(b, [][]string{{"firstacquire"}}, b.Sent())
		b.empty()
	})
}

// What is out may be applied, so its release goes behind it, past an open circuit.
func TestReleaseWaitsBehindItsSet(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		time.Sleep(10 * benchTimeout)
		rel := b.call(protocol.OpRelease, "a")
		rel.Set = set
		b.lane.TakeBack(rel, b.now())
		assert.Equal(b, protocol.NotSent, lastTold(rel).Kind, "the caller need not wait")
		assert.False(b, lastTold(rel).Final)
		close(b.Gate)
		assert.Equal(b, [][]string{{"aacquire"}, {"arelease"}}, b.Sent())
		assert.Equal(b, protocol.Granted, lastTold(rel).Kind)
		b.empty()
	})
}

func TestReleaseOfASetThatWasRefusedIsNotSent(t *testing.T) {
	for name, answer := range map[string]protocol.Answer{
		"refused": {Sent: true}, "error": {Said: lanetest.ServerError("OOM"), Sent: true}, "not sent": lanetest.Refused,
	} {
		onBench(t, func(b *bench) {
			b.Reply = func(string, bool) protocol.Answer { return answer }
			b.Gate = make(chan struct{})
			set := b.send(protocol.OpAcquire, "a")
			synctest.Wait()
			rel := b.release(set, "a") // the answer is not known yet
			b.Gate <- struct{}{}
			b.Gate = nil
			assert.Len(b, b.Sent(), 1, name)
			assert.Equal(b, lane.CallDropped, b.state(rel), name)
			b.release(set, "a") // it is known
			assert.Len(b, b.Sent(), 1, name)
			b.empty()

			// A holder wants to know what is there.
			time.Sleep(time.Second)
			b.Reply = nil
			rel = b.call(protocol.OpRelease, "a")
			rel.Set, rel.When = set, lane.SetWasSent
			b.lane.TakeBack(rel, b.now())
			synctest.Wait()
			assert.Equal(b, name == "not sent", lastTold(rel).Kind == protocol.NotSent, name)
			assert.NotZero(b, lastTold(rel).Kind, name)
		})
	}
}

// Scenario 44: the text of an unknown script goes before everything queued, once.
func TestNoScriptResendStaysFirst(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = func(name string, whole bool) protocol.Answer {
			if !whole && (name == "onerelease" || name == "tworelease") {
				return lanetest.NoScript
			}
			return protocol.Answer{}
		}
		b.Takes = time.Millisecond
		b.send(protocol.OpAcquire, "zero")
		synctest.Wait()
		one, two := b.send(protocol.OpRelease, "one"), b.send(protocol.OpRelease, "two")
		three := b.send(protocol.OpExtend, "three")
		time.Sleep(1500 * time.Microsecond)
		b.send(protocol.OpAcquire, "four")
		time.Sleep(time.Second)
		assert.Equal(b, [][]string{{"zeroacquire"}, {"onerelease", "tworelease", "threeextend"}, {"onerelease", "tworelease", "fouracquire"}}, b.Sent())
		for _, c := range []*lane.Call{one, two, three} {
			assert.Equal(b, protocol.Granted, lastTold(c).Kind)
		}
		b.empty()
	})
	onBench(t, func(b *bench) { // a server that never knows it
		b.Reply = func(string, bool) protocol.Answer { return lanetest.NoScript }
		c := b.send(protocol.OpRelease, "a")
		assert.Len(b, b.Sent(), 2)
		assert.Equal(b, protocol.Failed, lastTold(c).Kind)
		b.empty()
	})
}

// R5: nothing there, but the SET's answer was lost: it may land, so once more.
func TestUnsureSetIsReleasedTwice(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = lostSet
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		assert.Equal(b, protocol.Unknown, lastTold(set).Kind)
		rel := b.call(protocol.OpRelease, "a")
		rel.Set = set
		b.lane.TakeBack(rel, b.now())
		synctest.Wait()
		assert.Equal(b, protocol.Unknown, lastTold(rel).Kind, "no proof")
		assert.Equal(b, lane.ErrMayLand, lastTold(rel).Err())
		time.Sleep(benchTimeout - 1)
		assert.Len(b, b.Sent(), 2)
		time.Sleep(time.Nanosecond)
		assert.Len(b, b.Sent(), 3)
		time.Sleep(time.Minute)
		assert.Len(b, b.Sent(), 3, "and not a third time")
		b.empty()
	})
	onBench(t, func(b *bench) { // found at once: nothing can land any more
		b.Reply = func(name string, _ bool) protocol.Answer {
			if name == "aacquire" {
				return lanetest.Lost
			}
			return protocol.Answer{}
		}
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		time.Sleep(time.Minute)
		assert.Len(b, b.Sent(), 2)
		b.empty()
	})
}

// The grace is not cut short by the node's answering something else meanwhile.
func TestGraceIsNotCutShort(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = func(name string, _ bool) protocol.Answer {
			switch name {
			case "aacquire":
				return lanetest.Lost
			case "arelease":
				return lanetest.Zero
			}
			return protocol.Answer{}
		}
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		synctest.Wait()
		for range 3 {
			b.send(protocol.OpAcquire, "b")
			synctest.Wait()
		}
		assert.Len(b, b.Sent(), 5)
		time.Sleep(benchTimeout)
		assert.Len(b, b.Sent(), 6)
	})
}

// A join that was sent again after one whose answer was lost, and not sent itself: what the first
// did, or does later, is taken back all the same.
func TestReleaseAfterASecondJoinOfWhichTheFirstMayLand(t *testing.T) {
	for _, out := range []bool{false, true} { // whether it is on its way when the second comes
		onBench(t, func(b *bench) {
			b.Reply = func(name string, _ bool) protocol.Answer {
				switch {
				case name != "ajoin":
					return lanetest.Zero
				case out:
					time.Sleep(benchTimeout / 2)
				}
				return lanetest.Lost
			}
			first := b.join("a", "")
			if synctest.Wait(); !out {
				time.Sleep(benchTimeout)
			}
			second := &lane.Call{Req: first.Req}
			b.stand(true) // it waits when it is taken back
			b.lane.Enqueue(second, b.now())
			if len(b.lane.StillPending([]*lane.Call{first})) > 0 {
				b.lane.MarkUncertain(second)
			}
			rel := b.call(protocol.OpRelease, "a")
			rel.Set, rel.When = second, lane.Always
			b.stand(false)
			b.lane.TakeBack(rel, b.now())
			time.Sleep(time.Minute)
			assert.Equal(b, [][]string{{"ajoin"}, {"arelease"}, {"arelease"}}, b.Sent(), out)
			b.empty()
		})
	}
}

// stand has the lane send nothing, as while a goroutine is about to take a batch.
func (b *bench) stand(still bool) {
	b.lane.Mu.Lock()
	defer b.lane.Mu.Unlock()
	b.lane.Starting = still
}

func TestRepairInheritsTheDoubtOfTheSetBefore(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = func(name string, _ bool) protocol.Answer {
			switch name {
			case "aacquire":
				return lanetest.Lost
			case "arelease":
				return lanetest.Zero
			}
			return protocol.Answer{}
		}
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		mend := b.call(protocol.OpRepair, "a")
		mend.Caller = nil
		b.lane.Replace(set, mend, b.now())
		synctest.Wait()
		b.release(mend, "a")
		time.Sleep(time.Minute)
		assert.Equal(b, [][]string{{"aacquire"}, {"arepair"}, {"arelease"}, {"arelease"}}, b.Sent())
	})
}

// A repair that was never sent is dropped, but not what the SET before it did or may do.
func TestReleaseOfARepairThatWasNotSent(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer protocol.Answer
		asked  bool
	}{{"granted", lanetest.Ok, true}, {"lost", lanetest.Lost, true}, {"taken", protocol.Answer{Sent: true}, false}} {
		onBench(t, func(b *bench) {
			b.Reply = func(name string, _ bool) protocol.Answer {
				if name == "aacquire" {
					return c.answer
				}
				return protocol.Answer{}
			}
			set := b.send(protocol.OpAcquire, "a")
			synctest.Wait()
			b.Gate = make(chan struct{})
			b.send(protocol.OpAcquire, "out")
			synctest.Wait()
			mend := b.call(protocol.OpRepair, "a")
			mend.Caller = nil
			b.lane.Replace(set, mend, b.now())
			rel := b.call(protocol.OpRelease, "a")
			rel.Set, rel.When = mend, lane.SetWasSent
			b.lane.TakeBack(rel, b.now())
			close(b.Gate)
			synctest.Wait()
			want := [][]string{{"aacquire"}, {"outacquire"}}
			if c.asked {
				want = append(want, []string{"arelease"})
			}
			assert.Equal(b, want, b.Sent(), c.name)
			assert.Equal(b, protocol.Granted, lastTold(rel).Kind, c.name)
			b.empty()
		})
	}
}

// A SET whose answer was lost, and a repair after the node said that it has nothing: what
// the release deletes is from one of the two, and the other may still come.
func TestReleaseOfARepairAfterASetThatMayLand(t *testing.T) {
	for _, mended := range []protocol.Answer{lanetest.Ok, lanetest.Lost} {
		onBench(t, func(b *bench) {
			b.Reply = func(name string, _ bool) protocol.Answer {
				switch name {
				case "aacquire":
					return lanetest.Lost
				case "arepair":
					return mended
				}
				return protocol.Answer{}
			}
			set := b.send(protocol.OpAcquire, "a")
			synctest.Wait()
			mend := b.call(protocol.OpRepair, "a")
			mend.Caller = nil
			require.True(b, b.lane.Replace(set, mend, b.now()))
			synctest.Wait()
			b.release(mend, "a")
			time.Sleep(time.Minute)
			assert.Equal(b, [][]string{{"aacquire"}, {"arepair"}, {"arelease"}, {"arelease"}}, b.Sent())
		})
	}
}

// What a release was answered is told while the lane sends it again. The race detector sees
// whether the two share it.
func TestReleaseThatIsSentAgainWhileItsAnswerIsTold(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		slow := b.call(protocol.OpAcquire, "slow")
		told := make(chan struct{})
		slow.Caller.(*asker).slow = told
		b.lane.Enqueue(slow, b.now())
		sent := 0
		b.Answers(func(name string, _ bool) protocol.Answer {
			if name == "xrelease" {
				if sent++; sent == 1 {
					return lanetest.Lost
				}
			}
			return protocol.Answer{}
		})
		rel := b.call(protocol.OpRelease, "x")
		b.lane.Enqueue(rel, b.now())
		close(b.Gate)
		synctest.Wait()
		require.Equal(b, lane.CallKept, b.state(rel))
		time.Sleep(10 * time.Millisecond)
		go close(told)
		synctest.Wait()
		assert.Equal(b, protocol.Granted, lastTold(rel).Kind)
	})
}

// An error that passes is no end: the key is still there. It is asked for again after a
// pause that doubles, and not with every other answer of the node.
func TestReleaseThatFailsForNowIsTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.Reply = func(name string, _ bool) protocol.Answer {
			if name == "arelease" {
				return protocol.Answer{Said: lanetest.ServerError("BUSY Redis is busy running a script."), Sent: true}
			}
			return protocol.Answer{}
		}
		rel := b.call(protocol.OpRelease, "a")
		rel.Set = set
		b.lane.TakeBack(rel, b.now())
		synctest.Wait()
		assert.Equal(b, protocol.Failed, lastTold(rel).Kind)
		for range 3 {
			b.send(protocol.OpAcquire, "b")
			synctest.Wait()
		}
		assert.Len(b, b.Sent(), 5)
		time.Sleep((1 + 2 + 4 + 8) * lane.MinBackoff)
		assert.Len(b, b.Sent(), 9)
		b.Answers(nil)
		time.Sleep(16 * lane.MinBackoff)
		synctest.Wait()
		assert.Equal(b, protocol.Granted, lastTold(rel).Kind)
		b.empty()

		b.Answers(func(string, bool) protocol.Answer {
			return protocol.Answer{Said: lanetest.ServerError("NOPERM this user has no permissions"), Sent: true}
		})
		n := len(b.Sent())
		b.release(set, "a")
		time.Sleep(time.Minute)
		assert.Len(b, b.Sent(), n+1, "what waiting does not mend is not tried again")
		b.empty()
	})
}

// A release that was not answered is sent again with growing pauses until the key is
// gone by its TTL.
func TestKeptReleaseIsTriedAgainUntilTheKeyIsGone(t *testing.T) {
	for name, answer := range map[string]protocol.Answer{"lost": lanetest.Lost, "refused": lanetest.Refused} {
		onBench(t, func(b *bench) {
			set := b.send(protocol.OpAcquire, "a")
			synctest.Wait()
			b.Reply = func(string, bool) protocol.Answer { return answer }
			rel := b.release(set, "a")
			synctest.Wait()
			assert.Equal(b, lane.CallKept, b.state(rel))
			time.Sleep(2 * benchTTL)
			b.empty()
			last, pause := b.Batches[1].At, time.Duration(0)
			for _, l := range b.Batches[2:] {
				assert.GreaterOrEqual(b, l.At-last, pause, name)
				assert.LessOrEqual(b, l.At-last, lane.MaxBackoff, name)
				last, pause = l.At, l.At-last
			}
			assert.LessOrEqual(b, last, benchTTL, name)
			assert.Greater(b, last, benchTTL/2, name)
			assert.InDelta(b, 9, len(b.Batches), 2, name)
			assert.Equal(b, lane.CallDone, b.state(rel), name)
		})
	}
}

func TestKeptReleaseGoesOutAsSoonAsTheNodeAnswers(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.Reply = func(string, bool) protocol.Answer { return lanetest.Lost }
		b.release(set, "a")
		time.Sleep(400 * time.Millisecond) // the pauses are long by now
		n := len(b.Sent())
		b.Reply = nil
		b.send(protocol.OpAcquire, "b")
		assert.Equal(b, [][]string{{"bacquire"}, {"arelease"}}, b.Sent()[n:])
		b.empty()
		assert.Equal(b, []string{"true", "false"}, b.downs)
	})
}

// No connection: acquires are refused at once for a while; nothing is left of them.
func TestHoldOffAfterFailedDials(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = func(string, bool) protocol.Answer { return lanetest.Refused }
		first := b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		assert.Equal(b, protocol.NotSent, lastTold(first).Kind)
		for range 1000 {
			c := b.send(protocol.OpAcquire, "next")
			require.Equal(b, protocol.NotSent, lastTold(c).Kind)
			require.ErrorIs(b, lastTold(c).Err(), syscall.ECONNREFUSED)
			require.Equal(b, lane.CallDropped, b.state(b.release(c, "next")))
		}
		assert.Len(b, b.Sent(), 1)
		b.empty()
		for range 1000 {
			time.Sleep(time.Millisecond)
			c := b.send(protocol.OpAcquire, "again")
			synctest.Wait()
			b.release(c, "again")
		}
		n := len(b.Sent())
		assert.Greater(b, n, 6)
		assert.Less(b, n, 12, "the pause doubles up to its limit")
		b.empty()

		b.Reply = nil
		time.Sleep(lane.MaxBackoff)
		assert.Equal(b, protocol.Granted, func() protocol.Kind { c := b.send(protocol.OpAcquire, "up"); synctest.Wait(); return lastTold(c).Kind }())
		b.Reply = func(string, bool) protocol.Answer { return lanetest.Refused }
		b.send(protocol.OpAcquire, "down")
		synctest.Wait()
		time.Sleep(lane.MinBackoff)
		n = len(b.Sent())
		b.send(protocol.OpAcquire, "down")
		assert.Len(b, b.Sent(), n+1, "it begins anew with the shortest")
	})
}

// A holder's release does not wait for a connection, but is sent when there is one.
func TestReleaseDuringHoldOff(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.Reply = func(string, bool) protocol.Answer { return lanetest.Refused }
		b.send(protocol.OpAcquire, "b")
		synctest.Wait()
		b.Reply = nil
		rel := b.call(protocol.OpRelease, "a")
		rel.Set, rel.When = set, lane.SetWasSent
		b.lane.TakeBack(rel, b.now())
		assert.Equal(b, protocol.NotSent, lastTold(rel).Kind)
		assert.False(b, lastTold(rel).Final)
		time.Sleep(lane.MinBackoff)
		synctest.Wait()
		assert.Equal(b, protocol.Granted, lastTold(rel).Kind)
		b.empty()
	})
	onBench(t, func(b *bench) { // unless the key is gone before
		set := b.call(protocol.OpAcquire, "a")
		set.Req.ReadBound = time.Millisecond
		b.lane.Enqueue(set, b.now())
		synctest.Wait()
		b.Reply = func(string, bool) protocol.Answer { return lanetest.Refused }
		b.send(protocol.OpAcquire, "b")
		synctest.Wait()
		rel := b.call(protocol.OpRelease, "a")
		rel.Req.KeepFor, rel.Set = time.Millisecond, set
		b.lane.TakeBack(rel, b.now())
		assert.True(b, lastTold(rel).Final)
		b.empty()
	})
}

// A batch that becomes overdue a moment after its last caller's time was up is noticed
// all the same, although nothing else happens.
func TestNodeIsDownAsSoonAsItsBatchIsOverdue(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		c := b.call(protocol.OpAcquire, "a")
		c.Deadline -= int64(5 * time.Millisecond) // its round began a while ago
		b.lane.Enqueue(c, b.now())
		time.Sleep(benchTimeout)
		synctest.Wait()
		assert.Equal(b, []string{"true"}, b.downs)
		close(b.Gate)
	})
}

// Nor need a caller wait for it.
func TestNodeIsDownWhereOnlyAKeptReleaseIsOut(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = lostSet
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		synctest.Wait()
		b.changes()
		b.Mu.Lock()
		b.Gate = make(chan struct{})
		b.Mu.Unlock()
		time.Sleep(2*benchTimeout - 1)
		require.Len(b, b.Sent(), 3, "the second release hangs")
		require.Empty(b, b.changes())
		time.Sleep(time.Nanosecond)
		assert.Equal(b, []string{"true"}, b.changes())
		close(b.Gate)
	})
}

// While one batch is overdue, the answer to another is no reason to say that the node is up: the lane
// still refuses.
func TestNodeIsNotUpWhileABatchIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, ScriptedWire: lanetest.NewScriptedWire()}
		b.lane = lane.New(b.ScriptedWire, tick.NewSystem(), func(down bool, _ error) {
			b.Mu.Lock()
			defer b.Mu.Unlock()
			b.downs = append(b.downs, fmt.Sprint(down))
		})
		b.lane.Flight.RTT = lane.Shortest{Before: 5 * time.Millisecond, Since: math.MaxInt64} // a long link
		gates := []chan struct{}{make(chan struct{}), make(chan struct{})}
		for i, name := range []string{"a", "b"} {
			b.Mu.Lock()
			b.Gate = gates[i]
			b.Mu.Unlock()
			b.send(protocol.OpAcquire, name)
			time.Sleep(10 * time.Millisecond)
		}
		require.Len(t, b.Sent(), 2, "two batches at once")
		time.Sleep(benchTimeout)
		require.Equal(t, []string{"true"}, b.changes())
		close(gates[1])
		assert.Empty(t, b.changes())
		close(gates[0])
		assert.Equal(t, []string{"false"}, b.changes())
		time.Sleep(time.Hour)
	})
}

// A call that is not sent any more keeps none of those behind it in memory.
func TestDroppedCallsKeepNoOthers(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		first := b.send(protocol.OpAcquire, "b")
		behind := weak.Make(b.send(protocol.OpAcquire, "c"))
		time.Sleep(2 * benchTimeout)
		close(b.Gate)
		synctest.Wait()
		require.ErrorIs(b, lastTold(first).Err(), lane.ErrTooLate)
		runtime.GC()
		assert.Nil(b, behind.Value())
		runtime.KeepAlive(first)
	})
}

func TestShortestIsOfTheLastTwoPeriods(t *testing.T) {
	var s lane.Shortest
	for _, c := range []struct {
		at           int64
		add, getThen time.Duration
	}{
		{1, 3, 3}, {2, 5, 3}, {3, 2, 2},
		{lane.ShortestPeriod, 4, 2}, {lane.ShortestPeriod + 1, 9, 2}, {lane.ShortestPeriod + 2, 6, 2}, // 2 is of the period before
		{2*lane.ShortestPeriod + 2, 7, 6}, {2*lane.ShortestPeriod + 3, 8, 6}, {3*lane.ShortestPeriod + 4, 1, 1},
	} {
		s.Add(c.add, c.at)
		assert.Equal(t, c.getThen, s.Get(), "at %d", c.at)
	}
}

// A release that is to be sent a second time is sent then, since nobody will be there at its time.
func TestClosedLaneSendsSecondReleases(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Reply = lostSet
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		synctest.Wait()
		n := len(b.Sent())
		<-b.lane.Close(b.now())
		assert.Equal(b, [][]string{{"arelease"}}, b.Sent()[n:])
		b.empty()
	})
}

func TestClosedLaneSendsReleasesOnly(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "a")
		kept := b.send(protocol.OpAcquire, "kept")
		synctest.Wait()
		b.Reply = func(name string, _ bool) protocol.Answer {
			if name == "keptrelease" {
				return lanetest.Lost
			}
			return protocol.Answer{}
		}
		b.release(kept, "kept")
		synctest.Wait()
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "out")
		synctest.Wait()
		waiting := b.send(protocol.OpAcquire, "waiting")
		b.release(set, "a")
		n := len(b.Sent())
		flushed := b.lane.Close(b.now())
		assert.ErrorIs(b, lastTold(waiting).Err(), protocol.ErrClosed)
		assert.ErrorIs(b, lastTold(b.send(protocol.OpAcquire, "late")).Err(), protocol.ErrClosed)
		assert.ErrorIs(b, lastTold(b.send(protocol.OpRelease, "late")).Err(), protocol.ErrClosed)
		select {
		case <-flushed:
			b.Error("flushed too early")
		default:
		}
		close(b.Gate)
		<-flushed
		assert.Equal(b, [][]string{{"arelease", "keptrelease"}}, b.Sent()[n:], "each once more")
		b.empty()
	})
	onBench(t, func(b *bench) {
		<-b.lane.Close(b.now()) // idle
	})
}

// Also those that wait for a node that failed them, or was away: it may serve again by now.
func TestClosedLaneSendsWhatItKept(t *testing.T) {
	for name, answer := range failsForNow {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				sets := b.hold(300)
				b.Answers(func(string, bool) protocol.Answer { return answer })
				all := b.releaseAll(sets, time.Hour)
				time.Sleep(10 * time.Second)
				counted := b.counter()
				b.Answers(nil)
				<-b.lane.Close(b.now())
				_, requests := counted()
				assert.Equal(b, len(all), requests, "each once more")
				assert.Equal(b, len(all), b.delivered(all))
				b.empty()
			})
		})
	}
}

// After Close a node that is up again is not told, so one that is down is not either: it would be told
// twice.
func TestClosedLaneTellsOfNoChange(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		flushed := b.lane.Close(b.now())
		time.Sleep(2 * benchTimeout)
		synctest.Wait()
		assert.Empty(b, b.downs)
		close(b.Gate)
		<-flushed
	})
}

func TestAbandonedLaneTellsWhoeverWaits(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		set := b.send(protocol.OpAcquire, "a")
		synctest.Wait()
		rel := b.send(protocol.OpRelease, "b")
		flushed := b.lane.Close(b.now())
		b.lane.Abandon(b.now())
		for c, kind := range map[*lane.Call]protocol.Kind{set: protocol.Unknown, rel: protocol.NotSent} {
			assert.ErrorIs(b, lastTold(c).Err(), protocol.ErrClosed)
			assert.Equal(b, kind, lastTold(c).Kind)
		}
		close(b.Gate)
		<-flushed
		assert.Equal(b, [][]string{{"aacquire"}}, b.Sent())
		assert.Equal(b, protocol.Granted, lastTold(set).Kind, "it is still read to its end")
		b.empty()
	})
}

// What each reply may be read as.
func TestReadingOfReplies(t *testing.T) {
	wrongType := protocol.Answer{Said: lanetest.ServerError("WRONGTYPE Operation against a key"), Sent: true}
	ofAnother := protocol.Answer{Said: lanetest.ServerError("WRONGTYPE a sorted set of others: {k}:shared"), Sent: true}
	for _, c := range []struct {
		op   protocol.Op
		b    protocol.Answer
		want protocol.Kind
	}{
		{protocol.OpAcquire, lanetest.Ok, protocol.Granted}, {protocol.OpAcquire, protocol.Answer{Sent: true}, protocol.Refused}, {protocol.OpAcquire, lanetest.One, protocol.Unknown},
		{protocol.OpAcquire, protocol.Answer{Said: "QUEUED"}, protocol.Unknown}, {protocol.OpAcquire, lanetest.Lost, protocol.Unknown}, {protocol.OpAcquire, lanetest.Refused, protocol.NotSent},
		{protocol.OpAcquire, protocol.Answer{Said: lanetest.ServerError("OOM")}, protocol.Failed}, {protocol.OpAcquire, wrongType, protocol.Failed},
		{protocol.OpRepair, lanetest.Ok, protocol.Granted}, {protocol.OpRepair, protocol.Answer{}, protocol.Refused},
		{protocol.OpExtend, lanetest.One, protocol.Granted}, {protocol.OpExtend, lanetest.Zero, protocol.Refused}, {protocol.OpExtend, protocol.Answer{Said: "another"}, protocol.Refused},
		{protocol.OpExtend, protocol.Answer{Said: "OK"}, protocol.Refused}, {protocol.OpExtend, wrongType, protocol.Refused}, {protocol.OpExtend, protocol.Answer{}, protocol.Unknown},
		{protocol.OpExtend, protocol.Answer{Said: int64(2)}, protocol.Unknown}, {protocol.OpExtend, protocol.Answer{Said: []any{}}, protocol.Unknown},
		{protocol.OpRelease, lanetest.One, protocol.Granted}, {protocol.OpRelease, lanetest.Zero, protocol.Refused}, {protocol.OpRelease, protocol.Answer{Said: "x"}, protocol.Refused},
		{protocol.OpRelease, wrongType, protocol.Refused}, {protocol.OpRelease, lanetest.Lost, protocol.Unknown}, {protocol.OpRelease, protocol.Answer{Said: 1.5}, protocol.Unknown},
		{protocol.OpForceRelease, lanetest.One, protocol.Granted}, {protocol.OpForceRelease, protocol.Answer{Said: "x"}, protocol.Refused},
		{protocol.OpInspect, protocol.Answer{Said: []any{}}, protocol.Granted}, {protocol.OpInspect, protocol.Answer{Said: "x"}, protocol.Unknown}, {protocol.OpInspect, lanetest.One, protocol.Unknown},
		{protocol.OpInspect, protocol.Answer{}, protocol.Unknown}, {protocol.OpInspect, wrongType, protocol.Failed},
		{protocol.OpExtend, ofAnother, protocol.Failed}, {protocol.OpRelease, ofAnother, protocol.Refused},
		{protocol.OpAcquireFenced, protocol.Answer{Said: int64(1 << 52)}, protocol.Granted}, {protocol.OpAcquireFenced, protocol.Answer{Said: int64(1<<52 + 1)}, protocol.Unknown},
		{protocol.OpAdopt, protocol.Answer{Said: int64(1<<52 + 1)}, protocol.Unknown},
	} {
		got := c.b.Read(c.op)
		assert.Equal(t, c.want, got.Kind, "%v %+v", c.op, c.b)
		assert.True(t, got.Final)
		if got.Kind == protocol.Unknown {
			assert.Error(t, got.Err())
		}
	}
	assert.Equal(t, "x", protocol.Answer{Said: "x"}.Read(protocol.OpRelease).Holder())
	assert.Empty(t, lanetest.Ok.Read(protocol.OpAcquire).Holder())
}
