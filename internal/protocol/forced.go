package protocol

// Forced counts what nodes said to a forced release.
type Forced struct {
	Deleted int // that had the key, and have it no more
	Gone    int // that have no key
	Others  int // that have what is another's
}

// Add takes in an answer.
func (f *Forced) Add(a Answer) {
	switch {
	case a.Kind == Granted:
		f.Deleted++
		f.Gone++
	case a.Kind == Refused && a.Holder() == "" && a.Err() == nil:
		f.Gone++
	case a.Kind == Refused:
		f.Others++
	}
}

// Failed is why a forced release failed, nil if it did not. ended is why no further answer is waited
// for.
func (f Forced) Failed(nodes int, ended error) error {
	switch quorum := nodes/2 + 1; {
	case f.Gone >= quorum && f.Deleted > 0:
		return nil
	case ended != nil:
		return ended
	case f.Gone >= quorum || f.Others > nodes-quorum:
		return ErrNotHeld
	default:
		return ErrNoQuorum
	}
}
