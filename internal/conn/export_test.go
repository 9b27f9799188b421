package conn

const (
	LeastSilence = leastSilence
	NoEnd        = noEnd
	RoleEvery    = roleEvery
)

var (
	ErrReplaced = errReplaced
	ErrSlow     = errSlow
	ErrUnlooked = errUnlooked
)
