// Package redsync is what theirs puts in place of redsync.go, mutex.go and error.go of redsync: the
// names and private fields that redsync's tests use, and behind them the package of this module.
package redsync

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4/redis"
	ours "github.com/quorumlock/redlock/extra/redsync"
	goredis "github.com/redis/go-redis/v9"
)

var ErrFailed = ours.ErrFailed

type (
	ErrTaken     = ours.ErrTaken
	ErrNodeTaken = ours.ErrNodeTaken
	RedisError   = ours.RedisError
)

type Redsync struct{ pools []redis.Pool }

func New(pools ...redis.Pool) *Redsync { return &Redsync{pools} }

func (r *Redsync) NewMutex(name string, options ...ours.Option) *Mutex {
	return &Mutex{name: name, pools: r.pools, quorum: len(r.pools)/2 + 1, options: options}
}

var (
	WithExpiry = ours.WithExpiry
	WithValue  = ours.WithValue
)

// Mutex makes the one of this module when it is used first, since tests set fields before.
type Mutex struct {
	name          string
	expiry        time.Duration
	tries         int
	delayFunc     ours.DelayFunc
	genValueFunc  func() (string, error) // that of redsync itself, which no test changes
	driftFactor   float64
	timeoutFactor float64 // redsync's default, which no test changes
	quorum        int
	setNXOnExtend bool
	value         string
	pools         []redis.Pool

	options []ours.Option
	made    *ours.Mutex
}

func genValue() (string, error) { panic("not called") }

func (m *Mutex) mutex() *ours.Mutex {
	if m.made != nil {
		return m.made
	}
	all := m.options
	if m.expiry != 0 {
		all = append(all, ours.WithExpiry(m.expiry))
	}
	if m.tries != 0 {
		all = append(all, ours.WithTries(m.tries))
	}
	if m.delayFunc != nil {
		all = append(all, ours.WithRetryDelayFunc(m.delayFunc))
	}
	if m.driftFactor != 0 {
		all = append(all, ours.WithDriftFactor(m.driftFactor))
	}
	if m.setNXOnExtend {
		all = append(all, ours.WithSetNXOnExtend())
	}
	clients := make([]goredis.UniversalClient, len(m.pools))
	for i, p := range m.pools {
		of, ok := p.(interface {
			Client() goredis.UniversalClient
		})
		if !ok {
			panic(fmt.Sprintf("%T is no pool of go-redis v9", p))
		}
		clients[i] = of.Client()
	}
	m.made = ours.New(clients...).NewMutex(m.name, all...)
	return m.made
}

func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

func (m *Mutex) TryLockContext(ctx context.Context) error {
	err := m.mutex().TryLockContext(ctx)
	if err != nil {
		fmt.Println("TryLock:", err) // TestTryLock waits for ever then, and does not say why
	}
	m.value = m.made.Value()
	return err
}

func (m *Mutex) Lock() error {
	err := m.mutex().Lock()
	m.value = m.made.Value()
	return err
}

func (m *Mutex) Value() string         { return m.mutex().Value() }
func (m *Mutex) Unlock() (bool, error) { return m.mutex().Unlock() }
func (m *Mutex) Extend() (bool, error) { return m.mutex().Extend() }
func (m *Mutex) Valid() (bool, error)  { return m.mutex().Valid() }
