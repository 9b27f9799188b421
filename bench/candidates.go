package main

import (
	"context"
	"slices"
	"time"

	"github.com/quorumlock/redlock"
)

// lease is the TTL of every candidate's locks.
const lease = 10 * time.Second

// candidate is a way to lock, connected to its servers.
type candidate interface {
	name() string
	// worker returns what one goroutine needs to lock one key again and again.
	worker(key string) worker
	// close frees the connections.
	close()
}

// worker locks and releases by turns; one goroutine uses it.
type worker interface {
	// acquire waits for the lock until ctx ends.
	acquire(ctx context.Context) error
	release(ctx context.Context) error
}

// excludes is false for a candidate that does not lock, but checks when it writes.
func excludes(c candidate) bool {
	o, ok := c.(interface{ optimistic() bool })
	return !ok || !o.optimistic()
}

// holder is a candidate that renews locks, or can be made to.
type holder interface {
	// hold takes a lock that is renewed until it is let go.
	hold(ctx context.Context, key string) (held, error)
	// validFor is how long a lock is valid after an extension began.
	validFor() time.Duration
}

type held interface {
	// until is the end of validity; zero if the library does not tell.
	until() time.Time
	lost() bool
	release(ctx context.Context) error
}

// entry is a candidate that can be opened. Those for one server use the first.
type entry struct {
	name  string
	about string
	open  func(context.Context, target) (candidate, error)
}

// target is what a candidate connects to.
type target struct {
	Addrs []string
	// NodeTimeout is redlock's; 0 is its default. A smoke run is patient, so that
	// a machine that stalls for a fraction of a second does not make it fail.
	NodeTimeout time.Duration
	// Where the locks of scenario 8 are.
	Postgres  string
	Etcd      []string
	ZooKeeper []string
	SQLite    string
}

func (b *bench) target(addrs []string) target {
	t := b.others
	t.Addrs = addrs
	if b.quick {
		t.NodeTimeout = lease / 4
	}
	return t
}

// The name of the candidate that others are compared with.
const baseline = "redsync"

var entries = []entry{
	{"redlock", "this library, defaults", openRedlock("redlock")},
	{"redlock-fenced", "this library with fencing tokens", openRedlock("redlock-fenced", redlock.WithFencing())},
	{"redsync", "go-redsync/redsync v4 over go-redis v9, defaults", openRedsync("redsync")},
	{"redsync-failfast", "the same WithFailFast", openRedsync("redsync-failfast", failFast)},
	{"redsync-5ms", "the same with a retry delay of 5 ms and no end of tries", openRedsync("redsync-5ms", impatient)},
	{"rueidislock-1", "redis/rueidis rueidislock, one server, one key", openRueidis("rueidislock-1", 1)},
	{"rueidislock-3", "redis/rueidis rueidislock, one server, majority 3 of 5 keys", openRueidis("rueidislock-3", 3)},
	{"bsm", "bsm/redislock, one server; waits by polling every 5 ms", openBsm},
	{bareName, "the bare lane: the same commands in pipelines, and nothing else of a lock; returns at the quorum", openBare(bareName, false)},
	{bareRESPName, "the same without go-redis: its bytes are written and read by hand", openBare(bareRESPName, true)},
	{"postgres-lock", "PostgreSQL, pg_advisory_lock", openPostgres("postgres-lock", newAdvisoryWorker)},
	{"postgres-row", "PostgreSQL, SELECT ... FOR UPDATE", openPostgres("postgres-row", newRowWorker)},
	{"postgres-version", "PostgreSQL, no lock: a version column, and again if it has changed", openPostgres("postgres-version", newVersionWorker)},
	{"etcd", "etcd, concurrency.Mutex, three members", openEtcd},
	{"zookeeper", "ZooKeeper, the recipe of its Go client, three servers", openZooKeeper},
	{"sqlite", "SQLite, a table of locks with an end, one machine", openSQLite},
}

func allNames() []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.name
	}
	return names
}

// lineup is a set of open candidates.
type lineup []candidate

// open connects those of the named candidates that the run wants.
func (b *bench) open(ctx context.Context, addrs []string, names ...string) (l lineup, err error) {
	for _, e := range entries {
		if !slices.Contains(names, e.name) || !b.wants(e.name) {
			continue
		}
		c, err := e.open(ctx, b.target(addrs))
		if err != nil {
			l.close()
			return nil, err
		}
		l = append(l, c)
	}
	return l, nil
}

func (l lineup) close() {
	for _, c := range l {
		c.close()
	}
}

func openByName(ctx context.Context, name string, t target) (candidate, error) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.name == name })
	return entries[i].open(ctx, t)
}
