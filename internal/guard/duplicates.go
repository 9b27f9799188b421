package guard

// Duplicate is a pair of entries with the same id: First is the index at which the id occurs
// first, Second that of a later entry. Two nodes that are duplicates are one server, which
// would vote twice.
type Duplicate struct{ First, Second int }

// Duplicates returns a pair for every entry whose id has occurred before it, in the order of
// the entries. The zero id means that the entry's identity is not known; such entries
// have no duplicate. If T is an interface, its values must be comparable, or it panics.
func Duplicates[T comparable](ids []T) (all []Duplicate) {
	var unknown T
	first := make(map[T]int, len(ids))
	for i, id := range ids {
		if id == unknown {
			continue
		}
		if j, ok := first[id]; ok {
			all = append(all, Duplicate{First: j, Second: i})
			continue
		}
		first[id] = i
	}
	return all
}
