package lane

const (
	CallDropped = callDropped
	CallKept    = callKept
	FewestJoins = fewestJoins
)

var ErrMayLand = errMayLand
