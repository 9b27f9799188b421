package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/testing/history"
)

// A run with clients of two versions, which are replaced one after another, as by an upgrade and its way back. The older version's clients are
// this program, as that version built it: what a client process is told, and what it writes, has only grown since.

// programs are what client processes run.
type programs struct{ ours, old string }

func findPrograms(old string) (p programs, err error) {
	if p.ours, err = os.Executable(); err != nil || old == "" {
		return p, err
	}
	if old, err = exec.LookPath(old); err != nil {
		return p, fmt.Errorf("the program of the older version: %w", err)
	}
	p.old, err = filepath.Abs(old)
	return p, err
}

// of is what a client is started with. An older version knows counters only.
func (p programs) of(j job) (string, job) {
	if !j.Old {
		return p.ours, j
	}
	j.Kinds = slices.DeleteFunc(slices.Clone(j.Kinds), func(kind string) bool { return kind == mixed })
	return p.old, j
}

// upgrade replaces all clients by those of our version, one each time, and then back. In each round every fourth is killed; the others end what
// they do.
func (n *nemesis) upgrade(ctx context.Context, every time.Duration) {
	begin := n.clock.now()
	for step := range 2 * len(n.seats) {
		sleep(ctx, every*time.Duration(step+1)-time.Duration(n.clock.now()-begin))
		i := step % len(n.seats)
		target := fmt.Sprint("client ", i)
		for !n.take([]string{target}) { // it is stopped or dead
			if sleep(ctx, 10*time.Millisecond); ctx.Err() != nil {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		e := Event{Kind: "version", Client: i, Node: -1, From: n.clock.now(), Text: "replaced by a client of the older version"}
		if step < len(n.seats) {
			e.Text = "replaced by a client of our version"
		}
		err := n.seats[i].replace(step%4 == 3)
		e.To = n.clock.now()
		n.note(e)
		n.mu.Lock()
		delete(n.busy, target)
		if err != nil {
			n.errs = append(n.errs, fmt.Errorf("client %d, %s: %w", i, e.Text, err))
		}
		n.mu.Unlock()
	}
}

// replace ends the client's process, and starts one of the other version.
func (s *seat) replace(kill bool) error {
	var err error
	if kill {
		s.kill()
	} else {
		err = s.end(10*time.Second + 5*s.job.TTL)
	}
	s.mu.Lock()
	s.job.Old = !s.job.Old
	s.mu.Unlock()
	return errors.Join(err, s.start())
}

// Version is what the clients of one version were told.
type Version struct {
	Name   string         `json:"name"`
	Lives  int            `json:"lives"`  // processes
	Turns  []int          `json:"turns"`  // grants of each client
	Plain  Counts         `json:"plain"`  // what was done with the locks of plain counters
	Failed map[string]int `json:"failed"` // calls without success, by what they were and said
}

func (r *Report) countVersion(j job, ops []history.Op) {
	if r.Config.Old == "" {
		return
	}
	if r.Versions == nil {
		for _, name := range []string{"older", "new"} {
			r.Versions = append(r.Versions, &Version{Name: name, Turns: make([]int, r.Config.Clients), Failed: make(map[string]int)})
		}
	}
	v := r.Versions[0]
	if !j.Old {
		v = r.Versions[1]
	}
	v.Lives++
	for _, op := range ops {
		if kindOf(op.Key) == plain {
			v.Plain.add(op)
		}
		switch {
		case op.Err != "":
			v.Failed[op.Kind+": "+op.Err]++
		case op.Kind == history.Acquire:
			v.Turns[j.Client]++
		}
	}
}

// Answers are the calls without success, a line for each kind, the most frequent first.
func (v *Version) Answers() (lines []string) {
	by := slices.SortedFunc(maps.Keys(v.Failed), func(a, b string) int {
		return cmp.Or(cmp.Compare(v.Failed[b], v.Failed[a]), cmp.Compare(a, b))
	})
	for _, text := range by {
		lines = append(lines, fmt.Sprintf("%-26d %s", v.Failed[text], text))
	}
	return lines
}

// waitedInVain names the clients that got no lock in one of the versions.
func (r *Report) waitedInVain() (all []string) {
	for _, v := range r.Versions {
		for i, turns := range v.Turns {
			if turns == 0 {
				all = append(all, fmt.Sprintf("client %d of the %s version", i, v.Name))
			}
		}
	}
	return all
}
