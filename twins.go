package redlock

import "fmt"

// twin is a pair of entries with the same id: first is the index at which the id occurs
// first, second that of a later entry. Two nodes that are twins are one server, which
// would vote twice.
type twin struct{ first, second int }

// twins returns a pair for every entry whose id has occurred before it, in the order of
// the entries. The zero id means that the entry's identity is not known; such entries
// have no twin. If T is an interface, its values must be comparable, or it panics.
func twins[T comparable](ids []T) (all []twin) {
	var unknown T
	first := make(map[T]int, len(ids))
	for i, id := range ids {
		if id == unknown {
			continue
		}
		if j, ok := first[id]; ok {
			all = append(all, twin{first: j, second: i})
			continue
		}
		first[id] = i
	}
	return all
}

// sameServer is the error for nodes with these names that are twins.
func sameServer(names []string, t twin, runID string) error {
	return fmt.Errorf("redlock: %w: %s and %s are the same server, run id %s", ErrDuplicateNode, names[t.first], names[t.second], runID)
}
