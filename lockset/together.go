package lockset

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// departure is how a call ended that did not return.
type departure struct{ panicked any } // nil: runtime.Goexit

// together calls f with 0 to n-1, at the same time, and returns when all have. If one of them panics or
// calls runtime.Goexit, so does together, then.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	var left atomic.Pointer[departure]
	call := func(i int) {
		returned := false
		defer func() {
			if !returned {
				left.Store(&departure{recover()})
			}
		}()
		f(i)
		returned = true
	}
	for i := range n - 1 {
		all.Go(func() { call(i) })
	}
	func() {
		defer all.Wait() // also where the last call exits this goroutine
		if n > 0 {
			call(n - 1)
		}
	}()
	if d := left.Load(); d != nil {
		if d.panicked == nil {
			runtime.Goexit()
		}
		panic(d.panicked)
	}
}
