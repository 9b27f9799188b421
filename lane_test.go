package redlock

import (
	"fmt"
	"math"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bench is a lane over a wire whose replies a test scripts.
type bench struct {
	*testing.T
	*scriptedWire
	lane  *lane
	downs []string
}

func onBench(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, scriptedWire: newScriptedWire()}
		b.lane = newLane(b.scriptedWire, newSystemClock(), func(down bool, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.downs = append(b.downs, fmt.Sprint(down))
		})
		// Whatever the exchanges take, the link is a short one: one batch at a time.
		b.lane.flight.rtt = shortest{before: time.Microsecond, since: math.MaxInt64}
		test(b)
		time.Sleep(time.Hour) // nothing may go on for ever
		b.mu.Lock()
		defer b.mu.Unlock()
		assert.LessOrEqual(t, b.most, 1, "batches that are out at once")
	})
}

func (b *bench) now() int64 { return b.lane.clock.now().mono }

const (
	benchTTL     = time.Second
	benchTimeout = 20 * time.Millisecond
)

// call makes a call with a caller of its own.
func (b *bench) call(k op, name string) *call {
	req := &request{op: k, key: name, value: name, timeout: benchTimeout, readBound: benchTTL, keepFor: benchTTL}
	if !k.sets() {
		req.script = releaseScript
		req.key = "key"
	}
	return b.asks(req)
}

func (b *bench) asks(req *request) *call {
	return &call{req: req, caller: new(asker), deadline: b.now() + int64(req.timeout)}
}

// asker waits for one node.
type asker struct {
	mu   sync.Mutex
	last ballot
	slow chan struct{} // if set, it takes its final answer only then
}

func (a *asker) deliver(_ int, b ballot, _ int64) {
	a.mu.Lock()
	if !a.last.final {
		a.last = b
	}
	a.mu.Unlock()
	if b.final && a.slow != nil {
		<-a.slow
	}
}

func (b *bench) send(k op, name string) *call {
	c := b.call(k, name)
	b.lane.enqueue(c, b.now())
	return c
}

// release takes a SET back, with nobody waiting, as after a failed attempt.
func (b *bench) release(set *call, name string) *call {
	c := b.call(opRelease, name)
	c.caller, c.deadline, c.release.of = nil, 0, set
	b.lane.takeBack(c, b.now())
	return c
}

// lastTold is what the caller was told last.
func lastTold(c *call) ballot {
	a := c.caller.(*asker)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func (b *bench) state(c *call) callState {
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	return c.state
}

func (b *bench) keeps() int {
	_, kept := b.lane.load()
	return kept
}

func (b *bench) empty() {
	b.Helper()
	assert.Zero(b, b.keeps())
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	assert.Zero(b, b.lane.queue)
	assert.Empty(b, b.lane.flight.out)
	assert.False(b, b.lane.starting)
}

func TestLaneKeepsOrderAndBatches(t *testing.T) {
	onBench(t, func(b *bench) {
		b.takes = benchTimeout / 10
		b.send(opAcquire, "first")
		synctest.Wait()
		for i := range 1200 {
			b.send(opAcquire, fmt.Sprint(i))
		}
		time.Sleep(b.takes * 3 / 2)
		sent := b.sent()
		require.Len(b, sent, 2)
		assert.Equal(b, []string{"firstacquire"}, sent[0], "an idle lane sends at once")
		assert.Len(b, sent[1], mostInBatch)
		for i, name := range sent[1] {
			require.Equal(b, fmt.Sprint(i, "acquire"), name)
		}
		time.Sleep(100 * time.Millisecond)
		b.empty()
	})
}

func TestLaneDropsWhatWaitedTooLong(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		first := b.send(opAcquire, "first")
		synctest.Wait()
		second := b.send(opAcquire, "second")
		time.Sleep(benchTimeout)
		synctest.Wait()
		assert.Equal(b, kindUnknown, lastTold(first).kind)
		assert.False(b, lastTold(first).final)
		assert.Equal(b, kindNotSent, lastTold(second).kind)
		assert.True(b, lastTold(second).final, "it was never sent and never will be")
		assert.Equal(b, errTooLate, lastTold(second).err)
		third := b.send(opAcquire, "third")
		assert.Equal(b, errOverdue, lastTold(third).err, "the circuit is open")
		assert.Equal(b, kindNotSent, lastTold(b.send(opExtend, "fourth")).kind)
		close(b.gate)
		assert.Equal(b, [][]string{{"firstacquire"}}, b.sent())
		assert.Equal(b, kindGranted, lastTold(first).kind, "late, but an answer")
		b.empty()
		b.gate = nil
		assert.Equal(b, []string{"fifthacquire"}, func() []string { b.send(opAcquire, "fifth"); return b.sent()[1] }())
		assert.Equal(b, []string{"true", "false"}, b.downs)
	})
}

func TestLaneWaitsForALateReplyAsLongAsTheTTL(t *testing.T) {
	onBench(t, func(b *bench) {
		b.send(opAcquire, "a")
		synctest.Wait()
		long := b.call(opAcquire, "b")
		long.req.readBound = time.Hour
		b.lane.enqueue(long, b.now())
		synctest.Wait()
		brief := b.call(opAcquire, "c")
		brief.req.readBound = time.Millisecond
		b.lane.enqueue(brief, b.now())
		synctest.Wait()
		assert.Equal(b, benchTTL, b.batches[0].bound)
		assert.Equal(b, longestRead, b.batches[1].bound)
		assert.Equal(b, benchTimeout, b.batches[2].bound, "and never shorter than the timeout")
	})
}

func TestLaneDropsASetThatWaitsTogetherWithItsRelease(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		b.send(opAcquire, "first")
		synctest.Wait()
		second := b.send(opAcquire, "second")
		rel := b.release(second, "second")
		assert.Equal(b, errMoot, lastTold(second).err)
		assert.True(b, lastTold(second).final)
		assert.Equal(b, callDropped, b.state(rel))
		close(b.gate)
		assert.Equal(b, [][]string{{"firstacquire"}}, b.sent())
		b.empty()
	})
}

// What is out may be applied, so its release goes behind it, past an open circuit.
func TestReleaseWaitsBehindItsSet(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		set := b.send(opAcquire, "a")
		synctest.Wait()
		time.Sleep(10 * benchTimeout)
		rel := b.call(opRelease, "a")
		rel.release.of = set
		b.lane.takeBack(rel, b.now())
		assert.Equal(b, kindNotSent, lastTold(rel).kind, "the caller need not wait")
		assert.False(b, lastTold(rel).final)
		close(b.gate)
		assert.Equal(b, [][]string{{"aacquire"}, {"arelease"}}, b.sent())
		assert.Equal(b, kindGranted, lastTold(rel).kind)
		b.empty()
	})
}

func TestReleaseOfASetThatWasRefusedIsNotSent(t *testing.T) {
	for name, answer := range map[string]ballot{
		"refused": {sent: true}, "error": {err: serverError("OOM"), sent: true}, "not sent": refused,
	} {
		onBench(t, func(b *bench) {
			b.reply = func(string, bool) ballot { return answer }
			b.gate = make(chan struct{})
			set := b.send(opAcquire, "a")
			synctest.Wait()
			rel := b.release(set, "a") // the answer is not known yet
			b.gate <- struct{}{}
			b.gate = nil
			assert.Len(b, b.sent(), 1, name)
			assert.Equal(b, callDropped, b.state(rel), name)
			b.release(set, "a") // it is known
			assert.Len(b, b.sent(), 1, name)
			b.empty()

			// A holder wants to know what is there.
			time.Sleep(time.Second)
			b.reply = nil
			rel = b.call(opRelease, "a")
			rel.release = releasePlan{of: set, when: ifSent}
			b.lane.takeBack(rel, b.now())
			synctest.Wait()
			assert.Equal(b, name == "not sent", lastTold(rel).kind == kindNotSent, name)
			assert.NotZero(b, lastTold(rel).kind, name)
		})
	}
}

// Scenario 44: the text of an unknown script goes before everything queued, once.
func TestNoScriptResendStaysFirst(t *testing.T) {
	onBench(t, func(b *bench) {
		b.reply = func(name string, whole bool) ballot {
			if !whole && (name == "onerelease" || name == "tworelease") {
				return noScript
			}
			return ballot{}
		}
		b.takes = time.Millisecond
		b.send(opAcquire, "zero")
		synctest.Wait()
		one, two := b.send(opRelease, "one"), b.send(opRelease, "two")
		three := b.send(opExtend, "three")
		time.Sleep(1500 * time.Microsecond)
		b.send(opAcquire, "four")
		time.Sleep(time.Second)
		assert.Equal(b, [][]string{{"zeroacquire"}, {"onerelease", "tworelease", "threeextend"}, {"onerelease", "tworelease", "fouracquire"}}, b.sent())
		for _, c := range []*call{one, two, three} {
			assert.Equal(b, kindGranted, lastTold(c).kind)
		}
		b.empty()
	})
	onBench(t, func(b *bench) { // a server that never knows it
		b.reply = func(string, bool) ballot { return noScript }
		c := b.send(opRelease, "a")
		assert.Len(b, b.sent(), 2)
		assert.Equal(b, kindFailed, lastTold(c).kind)
		b.empty()
	})
}

// R5: nothing there, but the SET's answer was lost: it may land, so once more.
func TestUnsureSetIsReleasedTwice(t *testing.T) {
	onBench(t, func(b *bench) {
		b.reply = func(name string, _ bool) ballot {
			if name == "aacquire" {
				return lost
			}
			return zero
		}
		set := b.send(opAcquire, "a")
		synctest.Wait()
		assert.Equal(b, kindUnknown, lastTold(set).kind)
		rel := b.call(opRelease, "a")
		rel.release.of = set
		b.lane.takeBack(rel, b.now())
		synctest.Wait()
		assert.Equal(b, kindUnknown, lastTold(rel).kind, "no proof")
		assert.Equal(b, errMayLand, lastTold(rel).err)
		time.Sleep(benchTimeout - 1)
		assert.Len(b, b.sent(), 2)
		time.Sleep(time.Nanosecond)
		assert.Len(b, b.sent(), 3)
		time.Sleep(time.Minute)
		assert.Len(b, b.sent(), 3, "and not a third time")
		b.empty()
	})
	onBench(t, func(b *bench) { // found at once: nothing can land any more
		b.reply = func(name string, _ bool) ballot {
			if name == "aacquire" {
				return lost
			}
			return ballot{}
		}
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		time.Sleep(time.Minute)
		assert.Len(b, b.sent(), 2)
		b.empty()
	})
}

// The grace is not cut short by the node's answering something else meanwhile.
func TestGraceIsNotCutShort(t *testing.T) {
	onBench(t, func(b *bench) {
		b.reply = func(name string, _ bool) ballot {
			switch name {
			case "aacquire":
				return lost
			case "arelease":
				return zero
			}
			return ballot{}
		}
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		synctest.Wait()
		for range 3 {
			b.send(opAcquire, "b")
			synctest.Wait()
		}
		assert.Len(b, b.sent(), 5)
		time.Sleep(benchTimeout)
		assert.Len(b, b.sent(), 6)
	})
}

func TestRepairInheritsTheDoubtOfTheSetBefore(t *testing.T) {
	onBench(t, func(b *bench) {
		b.reply = func(name string, _ bool) ballot {
			switch name {
			case "aacquire":
				return lost
			case "arelease":
				return zero
			}
			return ballot{}
		}
		set := b.send(opAcquire, "a")
		synctest.Wait()
		mend := b.call(opRepair, "a")
		mend.caller = nil
		b.lane.replace(set, mend, b.now())
		synctest.Wait()
		b.release(mend, "a")
		time.Sleep(time.Minute)
		assert.Equal(b, [][]string{{"aacquire"}, {"arepair"}, {"arelease"}, {"arelease"}}, b.sent())
	})
}

// A repair that was never sent is dropped, but not what the SET before it did or may do.
func TestReleaseOfARepairThatWasNotSent(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer ballot
		asked  bool
	}{{"granted", ok, true}, {"lost", lost, true}, {"taken", ballot{sent: true}, false}} {
		onBench(t, func(b *bench) {
			b.reply = func(name string, _ bool) ballot {
				if name == "aacquire" {
					return c.answer
				}
				return ballot{}
			}
			set := b.send(opAcquire, "a")
			synctest.Wait()
			b.gate = make(chan struct{})
			b.send(opAcquire, "out")
			synctest.Wait()
			mend := b.call(opRepair, "a")
			mend.caller = nil
			b.lane.replace(set, mend, b.now())
			rel := b.call(opRelease, "a")
			rel.release = releasePlan{of: mend, when: ifSent}
			b.lane.takeBack(rel, b.now())
			close(b.gate)
			synctest.Wait()
			want := [][]string{{"aacquire"}, {"outacquire"}}
			if c.asked {
				want = append(want, []string{"arelease"})
			}
			assert.Equal(b, want, b.sent(), c.name)
			assert.Equal(b, kindGranted, lastTold(rel).kind, c.name)
			b.empty()
		})
	}
}

// A SET whose answer was lost, and a repair after the node said that it has nothing: what
// the release deletes is from one of the two, and the other may still come.
func TestReleaseOfARepairAfterASetThatMayLand(t *testing.T) {
	for _, mended := range []ballot{ok, lost} {
		onBench(t, func(b *bench) {
			b.reply = func(name string, _ bool) ballot {
				switch name {
				case "aacquire":
					return lost
				case "arepair":
					return mended
				}
				return ballot{}
			}
			set := b.send(opAcquire, "a")
			synctest.Wait()
			mend := b.call(opRepair, "a")
			mend.caller = nil
			require.True(b, b.lane.replace(set, mend, b.now()))
			synctest.Wait()
			b.release(mend, "a")
			time.Sleep(time.Minute)
			assert.Equal(b, [][]string{{"aacquire"}, {"arepair"}, {"arelease"}, {"arelease"}}, b.sent())
		})
	}
}

// What a release was answered is told while the lane sends it again. The race detector sees
// whether the two share it.
func TestReleaseThatIsSentAgainWhileItsAnswerIsTold(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		b.send(opAcquire, "first")
		synctest.Wait()
		slow := b.call(opAcquire, "slow")
		told := make(chan struct{})
		slow.caller.(*asker).slow = told
		b.lane.enqueue(slow, b.now())
		sent := 0
		b.answers(func(name string, _ bool) ballot {
			if name == "xrelease" {
				if sent++; sent == 1 {
					return lost
				}
			}
			return ballot{}
		})
		rel := b.call(opRelease, "x")
		b.lane.enqueue(rel, b.now())
		close(b.gate)
		synctest.Wait()
		require.Equal(b, callKept, b.state(rel))
		time.Sleep(10 * time.Millisecond)
		go close(told)
		synctest.Wait()
		assert.Equal(b, kindGranted, lastTold(rel).kind)
	})
}

// An error that passes is no end: the key is still there. It is asked for again after a
// pause that doubles, and not with every other answer of the node.
func TestReleaseThatFailsForNowIsTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.reply = func(name string, _ bool) ballot {
			if name == "arelease" {
				return ballot{err: serverError("BUSY Redis is busy running a script."), sent: true}
			}
			return ballot{}
		}
		rel := b.call(opRelease, "a")
		rel.release.of = set
		b.lane.takeBack(rel, b.now())
		synctest.Wait()
		assert.Equal(b, kindFailed, lastTold(rel).kind)
		for range 3 {
			b.send(opAcquire, "b")
			synctest.Wait()
		}
		assert.Len(b, b.sent(), 5)
		time.Sleep((1 + 2 + 4 + 8) * minBackoff)
		assert.Len(b, b.sent(), 9)
		b.answers(nil)
		time.Sleep(16 * minBackoff)
		synctest.Wait()
		assert.Equal(b, kindGranted, lastTold(rel).kind)
		b.empty()

		b.answers(func(string, bool) ballot {
			return ballot{err: serverError("NOPERM this user has no permissions"), sent: true}
		})
		n := len(b.sent())
		b.release(set, "a")
		time.Sleep(time.Minute)
		assert.Len(b, b.sent(), n+1, "what waiting does not mend is not tried again")
		b.empty()
	})
}

// A release that was not answered is sent again with growing pauses until the key is
// gone by its TTL.
func TestKeptReleaseIsTriedAgainUntilTheKeyIsGone(t *testing.T) {
	for name, answer := range map[string]ballot{"lost": lost, "refused": refused} {
		onBench(t, func(b *bench) {
			set := b.send(opAcquire, "a")
			synctest.Wait()
			b.reply = func(string, bool) ballot { return answer }
			rel := b.release(set, "a")
			synctest.Wait()
			assert.Equal(b, callKept, b.state(rel))
			time.Sleep(2 * benchTTL)
			b.empty()
			last, pause := b.batches[1].at, time.Duration(0)
			for _, l := range b.batches[2:] {
				assert.GreaterOrEqual(b, l.at-last, pause, name)
				assert.LessOrEqual(b, l.at-last, maxBackoff, name)
				last, pause = l.at, l.at-last
			}
			assert.LessOrEqual(b, last, benchTTL, name)
			assert.Greater(b, last, benchTTL/2, name)
			assert.InDelta(b, 9, len(b.batches), 2, name)
			assert.Equal(b, callDone, b.state(rel), name)
		})
	}
}

func TestKeptReleaseGoesOutAsSoonAsTheNodeAnswers(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.reply = func(string, bool) ballot { return lost }
		b.release(set, "a")
		time.Sleep(400 * time.Millisecond) // the pauses are long by now
		n := len(b.sent())
		b.reply = nil
		b.send(opAcquire, "b")
		assert.Equal(b, [][]string{{"bacquire"}, {"arelease"}}, b.sent()[n:])
		b.empty()
		assert.Equal(b, []string{"true", "false"}, b.downs)
	})
}

// No connection: acquires are refused at once for a while; nothing is left of them.
func TestHoldOffAfterFailedDials(t *testing.T) {
	onBench(t, func(b *bench) {
		b.reply = func(string, bool) ballot { return refused }
		first := b.send(opAcquire, "first")
		synctest.Wait()
		assert.Equal(b, kindNotSent, lastTold(first).kind)
		for range 1000 {
			c := b.send(opAcquire, "next")
			require.Equal(b, kindNotSent, lastTold(c).kind)
			require.ErrorIs(b, lastTold(c).err, syscall.ECONNREFUSED)
			require.Equal(b, callDropped, b.state(b.release(c, "next")))
		}
		assert.Len(b, b.sent(), 1)
		b.empty()
		for range 1000 {
			time.Sleep(time.Millisecond)
			c := b.send(opAcquire, "again")
			synctest.Wait()
			b.release(c, "again")
		}
		n := len(b.sent())
		assert.Greater(b, n, 6)
		assert.Less(b, n, 12, "the pause doubles up to its limit")
		b.empty()

		b.reply = nil
		time.Sleep(maxBackoff)
		assert.Equal(b, kindGranted, func() answerKind { c := b.send(opAcquire, "up"); synctest.Wait(); return lastTold(c).kind }())
		b.reply = func(string, bool) ballot { return refused }
		b.send(opAcquire, "down")
		synctest.Wait()
		time.Sleep(minBackoff)
		n = len(b.sent())
		b.send(opAcquire, "down")
		assert.Len(b, b.sent(), n+1, "it begins anew with the shortest")
	})
}

// A holder's release does not wait for a connection, but is sent when there is one.
func TestReleaseDuringHoldOff(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.reply = func(string, bool) ballot { return refused }
		b.send(opAcquire, "b")
		synctest.Wait()
		b.reply = nil
		rel := b.call(opRelease, "a")
		rel.release = releasePlan{of: set, when: ifSent}
		b.lane.takeBack(rel, b.now())
		assert.Equal(b, kindNotSent, lastTold(rel).kind)
		assert.False(b, lastTold(rel).final)
		time.Sleep(minBackoff)
		synctest.Wait()
		assert.Equal(b, kindGranted, lastTold(rel).kind)
		b.empty()
	})
	onBench(t, func(b *bench) { // unless the key is gone before
		set := b.call(opAcquire, "a")
		set.req.readBound = time.Millisecond
		b.lane.enqueue(set, b.now())
		synctest.Wait()
		b.reply = func(string, bool) ballot { return refused }
		b.send(opAcquire, "b")
		synctest.Wait()
		rel := b.call(opRelease, "a")
		rel.req.keepFor, rel.release.of = time.Millisecond, set
		b.lane.takeBack(rel, b.now())
		assert.True(b, lastTold(rel).final)
		b.empty()
	})
}

// A batch that becomes overdue a moment after its last caller's time was up is noticed
// all the same, although nothing else happens.
func TestNodeIsDownAsSoonAsItsBatchIsOverdue(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		c := b.call(opAcquire, "a")
		c.deadline -= int64(5 * time.Millisecond) // its round began a while ago
		b.lane.enqueue(c, b.now())
		time.Sleep(benchTimeout)
		synctest.Wait()
		assert.Equal(b, []string{"true"}, b.downs)
		close(b.gate)
	})
}

func TestClosedLaneSendsReleasesOnly(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(opAcquire, "a")
		kept := b.send(opAcquire, "kept")
		synctest.Wait()
		b.reply = func(name string, _ bool) ballot {
			if name == "keptrelease" {
				return lost
			}
			return ballot{}
		}
		b.release(kept, "kept")
		synctest.Wait()
		b.gate = make(chan struct{})
		b.send(opAcquire, "out")
		synctest.Wait()
		waiting := b.send(opAcquire, "waiting")
		b.release(set, "a")
		n := len(b.sent())
		flushed := b.lane.close(b.now())
		assert.ErrorIs(b, lastTold(waiting).err, errClosed)
		assert.ErrorIs(b, lastTold(b.send(opAcquire, "late")).err, errClosed)
		assert.ErrorIs(b, lastTold(b.send(opRelease, "late")).err, errClosed)
		select {
		case <-flushed:
			b.Error("flushed too early")
		default:
		}
		close(b.gate)
		<-flushed
		assert.Equal(b, [][]string{{"arelease", "keptrelease"}}, b.sent()[n:], "each once more")
		b.empty()
	})
	onBench(t, func(b *bench) {
		<-b.lane.close(b.now()) // idle
	})
}

func TestAbandonedLaneTellsWhoeverWaits(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		set := b.send(opAcquire, "a")
		synctest.Wait()
		rel := b.send(opRelease, "b")
		flushed := b.lane.close(b.now())
		b.lane.abandon(b.now())
		for _, c := range []*call{set, rel} {
			assert.ErrorIs(b, lastTold(c).err, errClosed)
			assert.Equal(b, kindUnknown, lastTold(c).kind)
		}
		close(b.gate)
		<-flushed
		assert.Equal(b, [][]string{{"aacquire"}}, b.sent())
		assert.Equal(b, kindGranted, lastTold(set).kind, "it is still read to its end")
		b.empty()
	})
}

// What each reply may be read as.
func TestReadingOfReplies(t *testing.T) {
	wrongType := ballot{err: serverError("WRONGTYPE Operation against a key"), sent: true}
	for _, c := range []struct {
		op   op
		b    ballot
		want answerKind
	}{
		{opAcquire, ok, kindGranted}, {opAcquire, ballot{sent: true}, kindRefused}, {opAcquire, one, kindUnknown},
		{opAcquire, ballot{val: "QUEUED"}, kindUnknown}, {opAcquire, lost, kindUnknown}, {opAcquire, refused, kindNotSent},
		{opAcquire, ballot{err: serverError("OOM")}, kindFailed}, {opAcquire, wrongType, kindFailed},
		{opRepair, ok, kindGranted}, {opRepair, ballot{}, kindRefused},
		{opExtend, one, kindGranted}, {opExtend, zero, kindRefused}, {opExtend, ballot{val: "another"}, kindRefused},
		{opExtend, ballot{val: "OK"}, kindRefused}, {opExtend, wrongType, kindRefused}, {opExtend, ballot{}, kindUnknown},
		{opExtend, ballot{val: int64(2)}, kindUnknown}, {opExtend, ballot{val: []any{}}, kindUnknown},
		{opRelease, one, kindGranted}, {opRelease, zero, kindRefused}, {opRelease, ballot{val: "x"}, kindRefused},
		{opRelease, wrongType, kindRefused}, {opRelease, lost, kindUnknown}, {opRelease, ballot{val: 1.5}, kindUnknown},
		{opForceRelease, one, kindGranted}, {opForceRelease, ballot{val: "x"}, kindRefused},
		{opInspect, ballot{val: []any{}}, kindGranted}, {opInspect, ballot{val: "x"}, kindUnknown}, {opInspect, one, kindUnknown},
		{opInspect, ballot{}, kindUnknown}, {opInspect, wrongType, kindFailed},
	} {
		got := c.b.read(c.op)
		assert.Equal(t, c.want, got.kind, "%v %+v", c.op, c.b)
		assert.True(t, got.final)
		if got.kind == kindUnknown {
			assert.Error(t, got.err)
		}
	}
	assert.Equal(t, "x", ballot{val: "x"}.read(opRelease).holder())
	assert.Empty(t, ok.read(opAcquire).holder())
}
