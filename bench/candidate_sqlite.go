package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	_ "modernc.org/sqlite"
)

// sqliteCandidate keeps locks with an end in a table of a file, for processes of one
// machine. Who does not get one asks again every 5 ms.
type sqliteCandidate struct{ db *sql.DB }

const sqliteTable = `CREATE TABLE IF NOT EXISTS bench (name TEXT PRIMARY KEY, owner TEXT NOT NULL, ends INTEGER NOT NULL) WITHOUT ROWID`

func openSQLite(ctx context.Context, t target) (candidate, error) {
	db, err := sql.Open("sqlite", "file:"+t.SQLite+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, sqliteTable); err != nil {
		_ = db.Close()
		return nil, err
	}
	db.SetMaxOpenConns(1) // one writes at a time anyway, and waits in here more fairly than at the file
	return &sqliteCandidate{db}, nil
}

func (c *sqliteCandidate) name() string             { return "sqlite" }
func (c *sqliteCandidate) close()                   { _ = c.db.Close() }
func (c *sqliteCandidate) worker(key string) worker { return &sqliteWorker{db: c.db, key: key} }

type sqliteWorker struct {
	db         *sql.DB
	key, owner string
}

func (w *sqliteWorker) acquire(ctx context.Context) error {
	w.owner = rand.Text()
	for {
		now := time.Now()
		done, err := w.db.ExecContext(ctx, `INSERT INTO bench VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE ends < ?`,
			w.key, w.owner, now.Add(lease).UnixMilli(), now.UnixMilli())
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); n == 1 || err != nil {
			return err
		}
		if sleep(ctx, 5*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (w *sqliteWorker) release(ctx context.Context) error {
	done, err := w.db.ExecContext(ctx, `DELETE FROM bench WHERE name = ? AND owner = ?`, w.key, w.owner)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); n == 1 || err != nil {
		return err
	}
	return errors.New("sqlite: the lock had ended")
}
