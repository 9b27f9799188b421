package protocol

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Remedies are what may end an error that does not pass by itself, while the program runs.
type Remedies uint8

const (
	// NewPassword: a password is changed on the server, or the program learns the new one.
	NewPassword Remedies = 1 << iota
	// NewRights: an operator gives rights to the user, or opens the server.
	NewRights
)

// lasting is the table of what servers say that does not pass by itself, by a part of their texts, and what
// may end it. The first row that fits counts. Everything else, such as LOADING, BUSY or TRYAGAIN, passes.
// The same table is in docs/operations.md.
var lasting = []struct {
	says   string
	remedy Remedies // 0: none while the program runs, as it, or the server, is set up wrongly
}{
	{"WRONGTYPE", 0}, // the key holds something else; first, as the text may name that key
	{"BADFENCE", 0},  // likewise its fencing counter
	{"NOAUTH", NewPassword},
	{"WRONGPASS", NewPassword},
	{"ERR invalid password", NewPassword}, // before Redis 6
	{"ERR AUTH", NewPassword},             // no password was set
	{"ERR Client sent AUTH", NewPassword}, // likewise, before Redis 6
	{"NOPERM", NewRights},
	{"can't run this command", NewRights}, // NOPERM, as scripts say it
	{"can't access at least one of the keys", NewRights},
	{"ACL failure", NewRights},
	{"DENIED", NewRights}, // protected mode
	{"MOVED", 0},
	{"ASK ", 0},
	{"CLUSTERDOWN", 0},
	{"CROSSSLOT", 0},
	{"unknown command", 0},
	{"not supported", 0}, // a section of INFO, by servers that are no Redis
	{"invalid DB index", 0},
	{"out of range", 0}, // likewise
}

// RemedyOf looks an error of a server up in the table.
func RemedyOf(err error) (remedy Remedies, lasts bool) {
	if err == nil || !IsServerError(err) {
		return 0, false
	}
	text := err.Error()
	for _, row := range lasting {
		if strings.Contains(text, row.says) {
			return row.remedy, true
		}
	}
	return 0, false
}

// Permanent reports whether waiting cannot mend why a node did not do what it was asked: it
// is set up wrongly, we are not allowed to use it, it does not tell of itself what it must, or its client was closed.
func Permanent(err error) bool { return PermanentBut(err, 0) }

// PermanentBut is Permanent for a party that waits for these remedies.
func PermanentBut(err error, awaited Remedies) bool {
	if err == nil {
		return false // the most frequent case allocates nothing
	}
	if errors.Is(err, redis.ErrClosed) {
		return true
	}
	if m := (mended{}); errors.As(err, &m) {
		awaited |= m.by
	}
	if l := (lacking{}); errors.As(err, &l) {
		return l.remedy&awaited == 0
	}
	remedy, lasts := RemedyOf(err)
	return lasts && remedy&awaited == 0
}

// mended is an error of a server for which a remedy is at hand, given the way in which it is reached.
type mended struct {
	error
	by Remedies
}

func (m mended) Unwrap() error { return m.error }

// Mended notes the remedies that are at hand for an error: it is not permanent if one of them is its own.
func Mended(err error, by Remedies) error {
	if by == 0 {
		return err
	}
	if remedy, _ := RemedyOf(err); remedy&by != 0 {
		return mended{err, by}
	}
	return err
}
