package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Why says why grants of a node that has a bar, and of which identity and mark are known or denied, do not count.
// Different causes look alike to a client, so each sentence is true of all that look like this.
func (ms *Memories) Why(i int, names []string) string {
	m, all := &ms.Nodes[i], ms.all()
	marked := m.mark.State == protocol.MarkPresent
	switch changed := m.changedAt >= m.since() || marked && m.mark.All == all; {
	case m.Identity == identityWithheld:
		return whyWithheld
	case changed && m.mark.State == protocol.MarkDenied:
		return whyDenied
	case changed:
		return whyChanged
	case !marked:
		return whyStarted
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
	whyWithheld = "no longer tells which server it is, so it may be one that has forgotten locks"
	whyDenied   = "restarted or replaced, or its data may be lost, or its memory mark is denied now, so it may have forgotten locks"
	whyChanged  = "restarted or replaced, or its data may be lost, so it may have forgotten locks"
	whyStarted  = "started a short time ago, so it may have forgotten locks"
	whySetBack  = "its clock was set back, so since when it remembers locks is not known"
	whyLater    = "restarted or replaced, or its data may be lost, or its clock was set back, so it may have forgotten locks"
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
