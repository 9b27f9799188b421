package jepsen

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// record is what a counter's file holds.
type record struct {
	Value int64  `json:"value"`
	Token string `json:"token"` // of the lock under which it was written
	Seen  uint64 `json:"seen"`  // the greatest fencing token that came with a read or a write
}

// store keeps each counter in a file. Nothing but the lock keeps two clients from reading the same value and writing the same successor.
type store struct {
	dir string
	// deaf is for a store that takes what comes, to see that the verdict notices.
	deaf bool
}

func (s store) path(key string) string { return filepath.Join(s.dir, key) }

func (s store) read(key string) (r record, err error) {
	b, err := os.ReadFile(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	return r, json.Unmarshal(b, &r)
}

// write replaces the file in one step, so that a killed client leaves the old value or the new one.
func (s store) write(key string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := s.path(key) + "." + strconv.Itoa(os.Getpid())
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, s.path(key))
}

// readFenced is a read of a holder with a fencing token. The store remembers the token: from now on it refuses whoever has a smaller one. A store
// that looked at tokens of writes only would take a late write of an earlier holder after this read and before the write that follows it, and
// that late write would be lost.
func (s store) readFenced(key string, fence uint64) (r record, refused bool, err error) {
	err = s.exclusively(key, func() error {
		if r, err = s.read(key); err != nil {
			return err
		}
		if fence < r.Seen && !s.deaf {
			refused = true
			return nil
		}
		r.Seen = max(r.Seen, fence)
		return s.write(key, r)
	})
	return r, refused, err
}

// writeFenced writes unless a greater token was seen.
func (s store) writeFenced(key string, r record, fence uint64) (refused bool, err error) {
	err = s.exclusively(key, func() error {
		old, err := s.read(key)
		if err != nil {
			return err
		}
		if fence < old.Seen && !s.deaf {
			refused = true
			return nil
		}
		r.Seen = max(fence, old.Seen)
		return s.write(key, r)
	})
	return refused, err
}

// exclusively is the store's own, local lock, which makes its check and its write one step, as a database would.
func (s store) exclusively(key string, f func() error) error {
	lock, err := os.OpenFile(s.path(key)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return err
	}
	return f()
}
