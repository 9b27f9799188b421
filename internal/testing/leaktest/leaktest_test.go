package leaktest

import (
	"bytes"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { Main(m) }

// The test runner's own goroutine waits while a test runs, so nothing here can find none.

func linger(t *testing.T) (end func()) {
	began, stop, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go lingering(began, stop, ended)
	<-began // before that a stack need not show its name
	end = func() { close(stop); <-ended }
	t.Cleanup(func() {
		select {
		case <-stop:
		default:
			end()
		}
	})
	return end
}

func lingering(began, stop, ended chan struct{}) {
	defer close(ended)
	close(began)
	<-stop
}

func has(stacks []string, what string) bool {
	return strings.Contains(strings.Join(stacks, "\n"), what)
}

func TestLeftoversAreFound(t *testing.T) {
	end := linger(t)
	assert.True(t, has(Leftovers(0), "leaktest.lingering"))
	end()
	assert.False(t, has(Leftovers(100*time.Millisecond), "leaktest.lingering"))
}

func TestLeftoversHaveNoSignalLoop(t *testing.T) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	defer signal.Stop(c)
	assert.False(t, has(Leftovers(100*time.Millisecond), "os/signal.loop"))
}

func TestALeakFailsTheRun(t *testing.T) {
	linger(t)
	var out bytes.Buffer
	assert.Equal(t, 1, run(func() int { return 0 }, 0, &out))
	assert.Regexp(t, `(?s)^\d+ goroutines leaked:\n\n.*leaktest\.lingering`, out.String())

	out.Reset()
	assert.Equal(t, 2, run(func() int { return 2 }, 0, &out), "failed tests say more than what they left")
	assert.Empty(t, out.String())
}
