package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// NoVote is why grants of a node that has a bar do not count, for the time left.
func (ms *Memories) NoVote(i int, left time.Duration, now tick.Instant, names []string) error {
	switch m := &ms.Nodes[i]; {
	case m.Identity == IdentityUncertain && protocol.FailedTrial(m.err):
		return m.err
	case m.Identity == IdentityUncertain && m.err != nil:
		return fmt.Errorf("%w: %w", ErrUnsure, m.err)
	case m.Identity == IdentityUncertain:
		return ErrUnsure
	case m.unmarked():
		return errNoMark
	default:
		return BarredError{left, now.Time.Add(left).Round(0), ms.Why(i, names)}
	}
}

// Why says why grants of a node that has a bar, and of which identity and mark are known, do not count.
// Different causes look alike to a client, so each sentence is true of all that look like this.
func (ms *Memories) Why(i int, names []string) string {
	m, all := &ms.Nodes[i], ms.all()
	switch {
	case m.changedAt >= m.markedAt, m.mark.All == all:
		return whyChanged
	case m.mark.Age < -time.Second:
		return whySetBack
	case !m.mark.First:
		return whyLater
	case m.mark.All > 0 && all > 0:
		return fmt.Sprintf(whyOthers, count(m.mark.All), all)
	default:
		if unseen := ms.Unseen(names); len(unseen) > 0 {
			return fmt.Sprintf(whyNewFleet, strings.Join(unseen, ", "))
		}
		return whyFirst
	}
}

const (
	whyChanged  = "restarted or replaced, or its data may be lost, or other data was put into it, so it may have forgotten locks"
	whySetBack  = "its clock was set back, so since when it remembers locks is not known"
	whyLater    = "restarted or replaced, or its data may be lost, or other data was put into it, or its clock was set back, so it may have forgotten locks"
	whyOthers   = "young memory mark, confirmed by clients of %s: this list has %d"
	whyNewFleet = "new fleet: %s not seen yet"
	whyFirst    = "had no memory mark: new, or restarted, replaced or emptied, so it may have forgotten locks"
)

func count(nodes int) string {
	if nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}
