package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
)

func TestDemoOnAPage(t *testing.T) {
	t.Setenv(addrsEnv, "127.0.0.1:1") // it has nodes of its own
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errOut lockedBuffer
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, []string{"demo", "--web", "--workers", "2"}, &out, &errOut) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "Only this machine can reach it") }, time.Minute, time.Millisecond)
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/[0-9a-f]{32}/`).FindString(out.String())
	require.NotEmpty(t, address, out.String())
	answer, err := http.Get(address)
	require.NoError(t, err)
	page, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	assert.Contains(t, string(page), "Break a node, watch the lock hold")
	cancel()
	assert.Equal(t, exitOK, <-ended, errOut.String())
	assert.Regexp(t, `\d+ updates under the lock, 0 lost\. Without it: \d+ of \d+ lost\.`, out.String())
}

// A key on a node that is cut off, or that may not vote, is of no use to its holder, and is not
// counted as one that is.
func TestVerdictOfThePageCountsNodesThatAreOfUse(t *testing.T) {
	s := &stage{hub: web.NewHub(), props: make([]prop, 5), quorum: 3}
	holder := &actor{stage: s, name: "worker 1", role: holding, until: time.Now().Add(time.Minute)}
	s.cast = []*actor{holder}
	for i := range s.props {
		s.props[i].holder = holder.name
	}
	assert.Equal(t, "Worker 1 has the lock: 5 of 5 nodes hold its key, and 3 are enough.", s.scene().Verdict.Text)
	s.props[1].gone = isolate
	s.props[4].forgetful = true
	assert.Equal(t, "Worker 1 has the lock: 3 of 5 nodes hold its key, and 3 are enough.", s.scene().Verdict.Text)
	s.props[0].gone = hang
	assert.Contains(t, s.scene().Verdict.Text, "only 2 of 5 nodes can renew it")
}

func TestFlagsThatAPageHasNoUseFor(t *testing.T) {
	t.Setenv(addrsEnv, "127.0.0.1:1")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"demo", "--web", "--duration", "8s"}, "--duration and --web do not go together"},
		{[]string{"demo", "--web", "--json"}, "--json and --web do not go together"},
		{[]string{"demo", "--web", "--addrs", "127.0.0.1:1"}, "'redlock watch --web' shows yours"},
		{[]string{"demo", "--web", "--workers", "1"}, "--workers is 1"},
		{[]string{"demo", "--web", "--ttl", "1ms"}, "--ttl is 1ms"},
		{[]string{"demo", "--web=everywhere"}, `--web is "everywhere": must be host:port`},
		{[]string{"watch", "--web", "--json"}, "--json and --web do not go together"},
		{[]string{"watch", "--web="}, `--web is "": must be host:port`},
	} {
		r := run(t, t.Context(), c.args...)
		assert.Equal(t, exitUsage, r.code, "%v: %s", c.args, r.errOut)
		assert.Contains(t, r.errOut, c.says)
	}
}

// Viewers may do whatever the buttons allow, in any order.
func TestWhateverViewersDoNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	s := perform(t, 2*time.Second, quick) // its end looks at the counter
	deeds := []deed{kill, hang, isolate, flush, bringBack, bringBack, bringBack, "pause"}
	for begun := time.Now(); time.Since(begun) < 6*time.Second; {
		err := s.do(web.Request{Do: string(deeds[rand.N(len(deeds))]), Node: rand.N(demoNodes)})
		if err != nil {
			require.ErrorAs(t, err, new(web.Refused))
		}
		time.Sleep(rand.N(60 * time.Millisecond)) // not for something, but to meet other moments
	}
	for i := range demoNodes {
		_ = s.do(web.Request{Do: string(bringBack), Node: i}) // refused where it is there
	}
	made, _ := s.counter.read()
	require.Eventually(t, func() bool { now, _ := s.counter.read(); return now > made+1 }, time.Minute, 10*time.Millisecond, "it works again")
	assert.Error(t, s.do(web.Request{Do: "melt"}))
	assert.Error(t, s.do(web.Request{Do: string(kill), Node: demoNodes}))
	assert.Error(t, s.do(web.Request{Do: string(kill), Node: -1}))
}

func TestSentencesAboutVotes(t *testing.T) {
	o := func(votes ...redlock.Vote) (all []redlock.Outcome) {
		for _, v := range votes {
			all = append(all, redlock.Outcome{Vote: v})
		}
		return all
	}
	const yes, no, barred, silent, unsent = redlock.VoteGranted, redlock.VoteRefused, redlock.VoteBarred, redlock.VoteUnknown, redlock.VoteNotSent
	for want, votes := range map[string][]redlock.Outcome{
		"nodes 1, 2, 3, 4 and 5 said yes":                                           o(yes, yes, yes, yes, yes),
		"nodes 1, 3 and 5 said yes, nodes 2 and 4 did not answer":                   o(yes, silent, yes, unsent, yes),
		"nodes 1, 2 and 3 said yes, node 4 may not vote yet, node 5 said no":        o(yes, yes, yes, barred, no),
		"nodes 2, 3 and 4 said yes, node 1 did not answer, node 5 may not vote yet": o(silent, yes, yes, yes, barred),
	} {
		assert.Equal(t, want, votesText(votes))
	}
	assert.Equal(t, "its lease is over", lossText(errors.Join(redlock.ErrExpired, redlock.ErrLost)))
}
