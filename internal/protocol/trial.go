package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// What a server says to the questions that its votes rest on, where that is no answer.

// TrialKey is the key of the trial, behind Options.KeyPrefix. Nothing is ever kept there. The trial shows that the
// server runs the commands of a lock for us, and not that we have the rights for a lock's key.
const TrialKey = "redlock:trial"

// TrialKeyOf is that of the trial beside a memory mark.
func TrialKeyOf(mark string) string { return strings.TrimSuffix(mark, MarkKey) + TrialKey }

// lacking is an error that waiting does not mend, whatever its text: a server tells of itself, or does for us, less than
// it must.
type lacking struct {
	error
	remedy Remedies
}

func (l lacking) Unwrap() error { return l.error }

// Unanswered is why a node has no vote that says err to a question, which is a command, perhaps with an argument.
func Unanswered(question string, err error) error {
	command, argument, _ := strings.Cut(question, " ")
	return untold(question, command, argument, err)
}

// TrialFails is why a node has no vote, by what it said to the trial on a key; nil if that is no reason. command is by
// what it was asked to run it.
func TrialFails(command, key string, val any, err error) error {
	const trial = "trial of a lock's commands, "
	if err != nil {
		return failedTrial{untold(trial+command, command, key, err)}
	}
	if val == any(int64(1)) {
		return nil
	}
	if parts, ok := val.([]any); ok && len(parts) == 2 {
		failed, isText := parts[0].(string)
		text, said := parts[1].(string)
		switch {
		case !isText || !said:
		case failed == "":
			return failedTrial{lacking{ownText(trial + Quote(key) + " must not exist, and it does: delete it"), 0}}
		default:
			return failedTrial{untold(trial+failed, failed, key, ownText(ServerText(strings.TrimPrefix(text, "-"))))}
		}
	}
	return failedTrial{ownText(fmt.Sprintf("%sunexpected reply %.100q", trial, fmt.Sprint(val)))}
}

// failedTrial is why a server may not be able to take back what it grants.
type failedTrial struct{ error }

func (f failedTrial) Unwrap() error { return f.error }

// FailedTrial reports whether a node has no vote since the trial failed.
func FailedTrial(err error) bool { return err != nil && errors.As(err, new(failedTrial)) }

// untold adds to what a server said to a command what was asked, and, if that does not pass, the right that is missing.
func untold(question, command, key string, err error) error {
	remedy, lasts := RemedyOf(err)
	switch {
	case remedy&NewRights != 0 && ofKey(err):
		return lacking{fmt.Errorf("%s: %w; the user lacks ~%s; see Options.NoRestartGuard", question, err, key), remedy}
	case remedy&NewRights != 0:
		return lacking{fmt.Errorf("%s: %w; the user lacks +%s%s", question, err, strings.ToLower(command), unguarded(command)), remedy}
	case neverRuns(err), hasAny(err.Error(), "not allowed from script"):
		return lacking{fmt.Errorf("%s: %w%s", question, err, unguarded(command)), remedy}
	case lasts:
		return err // and what it says is known by its beginning
	default:
		return fmt.Errorf("%s: %w", question, err)
	}
}

// ofKey reports whether a permission that is denied is that for a key.
func ofKey(err error) bool { return strings.Contains(err.Error(), "access") }

// unguarded names the option that does without a command. All others are those of a lock.
func unguarded(command string) string {
	if command == "INFO" || command == "TIME" {
		return "; see Options.NoRestartGuard"
	}
	return ""
}

// Refuses is an answer to PING that says why a server serves no client now, or us never; nil: it is a sign of life.
// Not to be allowed to PING is one, too.
func Refuses(err error) error {
	if err == nil || !IsServerError(err) || Denied(err) {
		return nil
	}
	if _, lasts := RemedyOf(err); lasts || Passing(err) {
		return err
	}
	return nil
}
