package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresCandidate locks in a database. A lock holds a connection for as long as it lasts,
// and so does a waiter.
type postgresCandidate struct {
	called string
	pool   *pgxpool.Pool
	make   func(c *postgresCandidate, key string) worker
}

const postgresTable = `CREATE TABLE IF NOT EXISTS bench (name text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)`

func openPostgres(name string, make func(*postgresCandidate, string) worker) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		config, err := pgxpool.ParseConfig(t.Postgres)
		if err != nil {
			return nil, err
		}
		config.MaxConns = 150
		// The contenders share the server's connections, and the pool keeps those it has.
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		// Two that create it at once may both try, and one then fails.
		if _, err := pool.Exec(ctx, `SELECT pg_advisory_lock(0)`); err != nil {
			pool.Close()
			return nil, err
		}
		_, err = pool.Exec(ctx, postgresTable)
		if err != nil {
			pool.Close()
			return nil, err
		}
		pool.Reset() // with the connection ends its advisory lock
		return &postgresCandidate{name, pool, make}, nil
	}
}

func (c *postgresCandidate) name() string             { return c.called }
func (c *postgresCandidate) close()                   { c.pool.Close() }
func (c *postgresCandidate) worker(key string) worker { return c.make(c, key) }

// advisoryWorker takes a lock of the session, which ends with the connection.
type advisoryWorker struct {
	pool *pgxpool.Pool
	key  string
	conn *pgxpool.Conn
}

func newAdvisoryWorker(c *postgresCandidate, key string) worker {
	return &advisoryWorker{pool: c.pool, key: key}
}

func (w *advisoryWorker) acquire(ctx context.Context) (err error) {
	if w.conn, err = w.pool.Acquire(ctx); err != nil {
		return err
	}
	if _, err = w.conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, w.key); err != nil {
		w.conn.Release()
	}
	return err
}

func (w *advisoryWorker) release(ctx context.Context) error {
	defer w.conn.Release()
	_, err := w.conn.Exec(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, w.key)
	return err
}

// rowWorker locks a row for the length of a transaction.
type rowWorker struct {
	pool *pgxpool.Pool
	key  string
	made bool // whether the row is known to exist
	tx   pgx.Tx
}

func newRowWorker(c *postgresCandidate, key string) worker { return &rowWorker{pool: c.pool, key: key} }

const postgresInsert = `INSERT INTO bench (name) VALUES ($1) ON CONFLICT DO NOTHING`

func (w *rowWorker) acquire(ctx context.Context) (err error) {
	if !w.made {
		if _, err := w.pool.Exec(ctx, postgresInsert, w.key); err != nil {
			return err
		}
		w.made = true
	}
	if w.tx, err = w.pool.Begin(ctx); err != nil {
		return err
	}
	var version int64
	if err = w.tx.QueryRow(ctx, `SELECT version FROM bench WHERE name = $1 FOR UPDATE`, w.key).Scan(&version); err != nil {
		_ = w.tx.Rollback(context.WithoutCancel(ctx))
	}
	return err
}

func (w *rowWorker) release(ctx context.Context) error { return w.tx.Commit(ctx) }

// versionWorker does not lock: it reads a row, and writes it if it is still the same, as
// often as that takes. All of it is its acquire; there is nothing to release.
type versionWorker struct {
	pool *pgxpool.Pool
	key  string
	made bool
}

func newVersionWorker(c *postgresCandidate, key string) worker {
	return &versionWorker{pool: c.pool, key: key}
}

// optimistic: it excludes nobody, so nothing may be inside while it "holds".
func (c *postgresCandidate) optimistic() bool { return c.called == "postgres-version" }

func (w *versionWorker) acquire(ctx context.Context) error {
	if !w.made {
		if _, err := w.pool.Exec(ctx, postgresInsert, w.key); err != nil {
			return err
		}
		w.made = true
	}
	for {
		var version int64
		if err := w.pool.QueryRow(ctx, `SELECT version FROM bench WHERE name = $1`, w.key).Scan(&version); err != nil {
			return err
		}
		done, err := w.pool.Exec(ctx, `UPDATE bench SET version = version + 1 WHERE name = $1 AND version = $2`, w.key, version)
		if err != nil {
			return err
		}
		if done.RowsAffected() == 1 {
			return nil
		}
	}
}

func (w *versionWorker) release(context.Context) error { return nil }
