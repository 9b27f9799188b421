package protocol

import "fmt"

// What servers deny to a user, in words that say what to do.

// lockCommands are what all locks need; EVALSHA saves bytes. docs/operations.md has them, too.
const lockCommands = "+set +get +del +pttl +pexpire +type +eval +evalsha"

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
