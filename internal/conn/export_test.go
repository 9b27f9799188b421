package conn

const (
	LeastSilence = leastSilence
	LookEvery    = lookEvery
	MostPause    = mostPause
)

var (
	ErrReplaced = errReplaced
	ErrSlow     = errSlow
	ErrUnlooked = errUnlooked
)
