package protocol

// Words takes the words of a command, one after the other: as a list for go-redis, or as the
// bytes that go over a connection.
type Words interface {
	Str(string)
	Join(a, b, c string) // one word
	Num(int64)
}

// Write writes the request as a command. Native: it went as may, the compare-and-delete of the
// server's own, in place of the script.
func (r *Request) Write(w Words, may NativeDelete) (native bool) {
	by := r.Native
	if may != NoNative && r.MayBeNative() {
		by = may
	}
	switch {
	case by != NoNative:
		r.compareAndDelete(w, by)
		return true
	case r.Script == nil:
		w.Str("SET")
		w.Str(r.Key)
		w.Str(r.Value)
		w.Str("NX")
		w.Str("PX")
		w.Num(r.Px)
	case r.Whole:
		w.Str("EVAL")
		w.Str(r.Script.Source)
		r.arguments(w)
	default:
		w.Str("EVALSHA")
		w.Str(r.Script.digest)
		r.arguments(w)
	}
	return false
}

// compareAndDelete is the release of a server that needs no script for it.
func (r *Request) compareAndDelete(w Words, by NativeDelete) {
	if by == DelEx {
		w.Str("DELEX")
		w.Str(r.Key)
		w.Str("IFEQ")
	} else {
		w.Str("DELIFEQ")
		w.Str(r.Key)
	}
	w.Str(r.Value)
}

var releaserDigits = [...]string{AsWaiter: "0", AsHolder: "1", AsPasser: "2"}

// digit is what scripts know a releaser by.
func (as Releaser) digit() string { return releaserDigits[as] }

// Values is the request as a command of go-redis.
func (r *Request) Values() []any {
	var v values
	r.Write(&v, NoNative)
	return v
}

type values []any

func (v *values) Str(s string) { *v = append(*v, s) }

func (v *values) Join(a, b, c string) { *v = append(*v, a+b+c) }

func (v *values) Num(n int64) { *v = append(*v, n) }
