// Package results is what a run of the bench measured, as it is written to a file. The
// tables of the pages and all plots are made from such a file, and from nothing else.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Report is everything that one run measured. Durations are nanoseconds in JSON.
type Report struct {
	Meta      Meta
	Points    []Point     `json:",omitempty"` // scenarios 1, 2, 4 and 8
	Cycles    []*Cycle    `json:",omitempty"` // scenarios 1 to 4
	Benchmark []Benchmark `json:",omitempty"`
	Links     []Link      `json:",omitempty"`
	Renewal   []Renewal   `json:",omitempty"`
	Hot       []Hot       `json:",omitempty"`
	Handovers []Handover  `json:",omitempty"`
	Soak      []Soak      `json:",omitempty"`
	Others    []Hot       `json:",omitempty"` // scenario 8: the hot key
	Ended     []Ended     `json:",omitempty"` // scenario 8
	Outages   []Outage    `json:",omitempty"` // scenario 8
	Problems  []string    `json:",omitempty"`
}

// Meta tells where the numbers come from.
type Meta struct {
	Date    string // of the run, as 2006-01-02
	Quick   bool   `json:",omitempty"` // a smoke run, whose figures mean nothing
	Go, OS  string
	CPUs    int
	Redis   string            // the servers' version; of Valkey that of the Redis that it is like
	Valkey  string            `json:",omitempty"` // its own version
	Servers map[string]string `json:",omitempty"` // the other servers' versions
	Modules map[string]string
	Fsync   time.Duration `json:",omitempty"` // of a small file in the folder of the servers' data
	Rounds  int
	Window  time.Duration
	Took    time.Duration
}

// ServerName is what the servers of the libraries for Redis are.
func (m *Meta) ServerName() string {
	if m.Valkey != "" {
		return "Valkey " + m.Valkey
	}
	return "Redis " + m.Redis
}

// A point whose rounds spread by more than Steady is measured again, so many times at most, and the
// steadiest of its measurements counts: the machine may have had other work during the others.
const (
	Steady  = 1.2
	Repeats = 2
)

// Point is how steadily a point of a scenario was measured.
type Point struct {
	Scenario int
	Name     string
	Again    int     // how often it was measured again, since rounds spread too far
	Spread   float64 // of the least steady candidate, in the measurement that counts
}

// Cycle is one candidate at one point of scenarios 1 to 4.
type Cycle struct {
	Scenario   int
	Point      string
	X          float64 // the point as a number, for plots
	Candidate  string
	Goroutines int
	PerSecond  float64   // median over the rounds
	Rounds     []float64 // cycles per second
	Cycles     int64
	Errors     int64
	FirstError string `json:",omitempty"`
	Cut        int64  // calls that lasted until the turn's limit
	Acquire    Spread
	Release    Spread
	ClientCPU  time.Duration // per cycle, as all that follow
	ServerCPU  time.Duration
	Allocs     float64
	Bytes      float64
	Healthy    []float64 `json:",omitempty"` // scenario 3: its own turns right before the fault
}

// Link is what a link was to delay, and what a PING over it takes.
type Link struct{ Asked, Measured time.Duration }

// Benchmark is a measurement of one server by redis-benchmark.
type Benchmark struct {
	Command               string
	Connections, Pipeline int
	PerSecond             float64
}

// Renewal is what it costs to keep many locks.
type Renewal struct {
	Candidate        string
	Held             int
	For              time.Duration
	ClientCPU        float64 // seconds per second: 1 is a core
	ServerCPU        float64
	PerSecond        struct{ Commands, Batches, Bytes float64 }
	HeapPerLock      float64 // bytes of live heap that a held lock keeps
	Renewals         int64
	Late             int64         // renewals that found less than half of the lease
	Latest           time.Duration // least validity that a renewal found
	ToldByTheLibrary bool          // whether the two above are known
	Lost             int64
	Errors           int64
}

// Hot is one candidate on the hot key.
type Hot struct {
	Candidate  string
	Processes  int
	Goroutines int // in each
	Down       int `json:",omitempty"` // nodes that were hung
	Handovers  int64
	PerSecond  float64
	Wait       Spread // those that were in vain included
	Least      int64  // cycles of the goroutine that was served least
	Most       int64
	Unserved   int64
	Errors     int64
	FirstError string        `json:",omitempty"`
	Commands   float64       // per handover, executed by all servers
	ClientCPU  time.Duration // per handover, over all processes
	ServerCPU  time.Duration
	Violations int64 // of mutual exclusion
	Lost       int64 // increments of the counter that the lock guards
}

// Handover is the time from the call of Release in one process to the return of Acquire
// in another, the only one that waits.
type Handover struct {
	Candidate  string
	RoundTrip  time.Duration // of a PING
	Latency    Spread
	Errors     int64
	FirstError string `json:",omitempty"`
}

// Soak is the state of the process after so many cycles.
type Soak struct {
	Cycles     int64
	PerSecond  float64
	LiveHeap   uint64 // after a collection
	Goroutines int
	Allocs     float64 // per cycle
	ClientCPU  time.Duration
	Errors     int64
	FirstError string `json:",omitempty"`
}

// Ended is what it costs that a holder ends without a release.
type Ended struct {
	Candidate string
	How       string        // killed, or stopped: the process is there, and does not run
	After     time.Duration // until another process had the lock; 0: it did not get it
	GaveUp    time.Duration `json:",omitempty"` // when its Acquire returned an error instead
	Limit     time.Duration // how long it was given
	Error     string        `json:",omitempty"`
}

// Outage is what the loss of one server costs clients that lock free keys.
type Outage struct {
	Candidate  string
	Servers    int
	Down       time.Duration // how long it was away
	Before     float64       // cycles per second
	During     float64
	After      float64
	Pause      time.Duration // the longest time without a cycle of any client
	Errors     int64
	FirstError string `json:",omitempty"`
}

// Spread is what tables show of a histogram.
type Spread struct {
	P50, P99, Max time.Duration
	Count         int64
}

func (s Spread) String() string {
	if s.Count == 0 {
		return "-"
	}
	return Short(s.P50) + " / " + Short(s.P99) + " / " + Short(s.Max)
}

// Ratio compares rates of the same round: the median, the least and the greatest of the
// ratios of the rounds.
type Ratio struct{ Median, Min, Max float64 }

// RatioOf divides round by round. Rounds that either side lacks, and those in which the
// base did nothing, do not count.
func RatioOf(rates, base []float64) Ratio {
	var all []float64
	for i := range min(len(rates), len(base)) {
		if base[i] > 0 {
			all = append(all, rates[i]/base[i])
		}
	}
	if len(all) == 0 {
		return Ratio{}
	}
	return Ratio{Median(all), slices.Min(all), slices.Max(all)}
}

func (r Ratio) String() string {
	if r.Median == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Median, r.Min, r.Max)
}

// Median is that of an even number in the middle between two; of none it is 0.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Short writes a duration with three digits.
func Short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
}

// Write makes the file, and its folder.
func (r *Report) Write(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Read reads a file that Write made. It refuses fields that it does not know: a page made
// from half of a newer file would be wrong without a word.
func Read(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	r := new(Report)
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Cycle finds a row of scenarios 1 to 4; nil if there is none.
func (r *Report) Cycle(scenario int, point, candidate string) *Cycle {
	for _, c := range r.Cycles {
		if c.Scenario == scenario && c.Point == point && c.Candidate == candidate {
			return c
		}
	}
	return nil
}
