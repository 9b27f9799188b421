package conn

const (
	LeastSilence = leastSilence
	RoleEvery    = roleEvery
)

var (
	ErrReplaced = errReplaced
	ErrSlow     = errSlow
	ErrUnlooked = errUnlooked
)
