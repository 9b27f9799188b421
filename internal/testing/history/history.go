// Package history is what a run of clients leaves behind for a checker: who called what, when it returned and with what answer. The simulation and
// the runs of real processes write it, the nested module proof reads it.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// What an Op did, and what became of it.
const (
	Acquire = "acquire"
	Extend  = "extend"
	Release = "release"
	// Detach leaves a lock to the client that adopts it, with an Acquire that has From.
	Detach = "detach"

	OK      = "ok"      // granted, extended, or gone by our hand
	Failed  = "failed"  // no lock, or no extension
	NotHeld = "notheld" // a majority says that it was not ours any more
	Unknown = "unknown" // called, and nobody can say what became of it
)

// How a lock is held.
const (
	Alone  = ""
	Shared = "shared"
	Permit = "permit"
)

// Op is one call of one client. Times are nanoseconds of one clock that all clients of the history share, the zero is the run's own.
type Op struct {
	Client  int    `json:"client"`
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	Token   string `json:"token,omitempty"` // of the acquisition: with it an extend or a release finds its acquire
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
	Outcome string `json:"outcome"`
	Until   int64  `json:"until,omitempty"` // end of validity after an acquire or an extend that is OK, in the shared clock
	Fence   uint64 `json:"fence,omitempty"`
	Mode    string `json:"mode,omitempty"`    // of an acquire
	Permit  int    `json:"permit,omitempty"`  // its number, from 1
	Permits int    `json:"permits,omitempty"` // how many there are
	From    string `json:"from,omitempty"`    // of an acquire that adopts: the token of the lock that it goes on with
	Err     string `json:"err,omitempty"`
}

// Writer writes operations, a line of JSON each. Any number of goroutines may use one.
type Writer struct {
	mu  sync.Mutex
	enc *json.Encoder
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{enc: json.NewEncoder(w)} }

// Write appends op.
func (w *Writer) Write(op Op) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enc.Encode(op)
}

// Read returns the operations of r. A last line cut short, as a killed client leaves it, is left out.
func Read(r io.Reader) ([]Op, error) {
	var ops []Op
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return ops, nil
		}
		if err != nil {
			return ops, err
		}
		var op Op
		if err := json.Unmarshal(line, &op); err != nil {
			return ops, fmt.Errorf("line %d: %w", n, err)
		}
		ops = append(ops, op)
	}
}
