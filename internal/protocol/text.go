package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// joinedError is several errors in one line, which is what a log has room for.
type joinedError []error

// InOneLine puts errors together as errors.Join does; nil if all of them are.
func InOneLine(errs ...error) error {
	all := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	default:
		return joinedError(all)
	}
}

func (e joinedError) Unwrap() []error { return e }

func (e joinedError) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Quote quotes a key, which may be any bytes, and cuts it off after MostOfKey of them:
// a key of a megabyte must not get into a log line.
func Quote(s string) string {
	if len(s) > MostOfKey {
		return fmt.Sprintf("%q... (%d bytes)", s[:MostOfKey], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// MostOfKey is how many bytes of a key are quoted.
const MostOfKey = 128

// Invalid puts all broken rules into one error; nil if there are none.
func Invalid(what string, broken []string) error {
	if len(broken) == 0 {
		return nil
	}
	return fmt.Errorf("redlock: %w %s: %s", ErrInvalid, what, strings.Join(broken, "; "))
}
