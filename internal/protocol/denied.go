package protocol

import (
	"fmt"
	"strings"
)

// What servers deny to a user, in words that say what to do.

// DeniedTo adds to an error that lasts what to give the user where the server denies it a command or a key. unsure: it
// is why a node has no vote.
func DeniedTo(err error, prefix string, unsure bool) error {
	remedy, lasts := RemedyOf(err)
	if !lasts {
		return err
	}
	rights := remedy&NewRights != 0
	option := unsure && (!rights || ofKey(err)) && !strings.Contains(err.Error(), "NoRestartGuard")
	switch {
	case rights && unsure:
		err = fmt.Errorf("%w; a vote needs ACL SETUSER USER ~%s ~%s %s", err, prefix+MarkKey, prefix+TrialKey, voteCommands)
	case rights && hasAny(err.Error(), "can't run this command", "ACL failure"): // in a script, and it may not say which
		err = fmt.Errorf("%w; locks need %s", err, lockCommands)
	}
	if option {
		err = fmt.Errorf("%w; see Options.NoRestartGuard", err)
	}
	return err
}

const (
	// voteCommands are what a node's vote needs, on the keys of the mark and of the trial.
	voteCommands = "+info +time +get +set +pexpire +pttl +del +eval +evalsha"
	// lockCommands are what all locks need. EVALSHA saves bytes.
	lockCommands = "+set +get +del +pttl +pexpire +type +eval +evalsha"
)

// queueCommands are what the scripts of a wait queue need beside those of a lock.
const queueCommands = "+zadd +zrem +zscore +zrangebyscore +zrevrange +zcount"

// QueueDenied is the error of a node that keeps no queue of a key for us, for good, by its answer to a join, with the
// permissions to be given; nil if waiting may help, or the queue's key holds something else.
func QueueDenied(err error, prefix, key string) error {
	if !Denied(err) && !neverRuns(err) && !keyDenied(err) {
		return nil
	}
	pattern := "{" + prefix + "*}:line"
	if NamingOf(key) == taggedNames {
		pattern = prefix + "*:line:"
	}
	return fmt.Errorf("the queue of waiters: %w; give the user what it needs, ACL SETUSER USER ~%s %s, or set Options.NoQueue", err, pattern, queueCommands)
}

// keyDenied reports whether a user may not touch a key.
func keyDenied(err error) bool {
	return err != nil && IsServerError(err) && hasAny(err.Error(), "can't access at least one of the keys", "ACL failure")
}
