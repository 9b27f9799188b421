package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
)

const (
	mostLocks   = 500 // that the page lists
	mostOthers  = 100 // that it asks for at a look
	mostWaiters = 5   // of a lock that it names
)

// board is what an operator sees of real nodes in a browser. It changes nothing there.
type board struct {
	operated *admin.Nodes
	search   *admin.Search
	keys     []string // those to be shown; none: all that are found
	interval time.Duration
	hub      *web.Hub

	// Used by the one goroutine that looks.
	shown []string
	sight admin.Sight     // of the latest look
	known map[string]bool // keys of locks that were seen
	times map[string]int64
	down  map[string]bool
	// barred is until when nodes may not vote, as it was published.
	barred map[string]int64
	lost   bool // the quorum
	// recheck: a node came back, so it may not vote perhaps.
	recheck bool
	checked time.Time // when that was begun
	tell    func(web.News)

	asking sync.Mutex // held while check asks the nodes
	mu     sync.Mutex
	report *admin.Report
	at     time.Time // of the report
	health health    // by the report
}

// view is a state of the page. Times are by the hub's clock.
type view struct {
	Quorum    int           `json:"quorum"`
	Answers   int           `json:"answers"`
	Barred    int           `json:"barred"` // of those that answer, how many may not vote yet
	Verdict   verdict       `json:"verdict"`
	Searching bool          `json:"searching"` // the nodes have keys that were not looked at yet
	More      int           `json:"more"`      // locks that are not listed
	Nodes     []viewNode    `json:"nodes"`
	Locks     []viewLock    `json:"locks"`
	Findings  []viewFinding `json:"findings"`
	Checked   int64         `json:"checked"` // 0: not yet

	health health
}

type viewNode struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
	Tells string `json:"tells,omitempty"` // by check
	// Barred is until when its grants do not count.
	Barred int64 `json:"barred,omitempty"`
	// Voteless: they do not, and it is not known until when.
	Voteless bool `json:"voteless,omitempty"`
}

type viewFinding struct {
	Node     string `json:"node,omitempty"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Advice   string `json:"advice"`
}

type viewLock struct {
	Key     string       `json:"key"`
	State   string       `json:"state"` // "held", "free", "in doubt", "split"
	Owner   string       `json:"owner,omitempty"`
	Until   int64        `json:"until"` // -1: for ever
	Has     int          `json:"has"`   // nodes with its key
	Fence   uint64       `json:"fence,omitempty"`
	Waiting int          `json:"waiting"`
	Waiters []viewWaiter `json:"waiters,omitempty"`
}

type viewWaiter struct {
	Owner string `json:"owner"`
	Since int64  `json:"since"`
}

// webWatch is watch with --web.
func webWatch(cmd *cobra.Command, s settings, keys []string, interval time.Duration, p *page) error {
	if err := p.check("json"); err != nil {
		return err
	}
	nodes, err := s.operate(admin.Options{})
	if err != nil {
		return err
	}
	defer nodes.Close()
	b := newBoard(nodes, keys, interval)
	server, err := web.Listen(p.listen, "watch", b.hub, nil)
	if err != nil {
		return err
	}
	p.ready(server)
	return b.run(cmd.Context(), server)
}

func newBoard(nodes *admin.Nodes, keys []string, interval time.Duration) *board {
	hub := web.NewHub()
	return &board{operated: nodes, search: nodes.Search(), keys: keys, interval: interval, hub: hub, tell: hub.Tell,
		known: make(map[string]bool), times: make(map[string]int64), down: make(map[string]bool), barred: make(map[string]int64)}
}

func (b *board) run(ctx context.Context, server *web.Server) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(running) })
	group.Go(func() error { b.show(running); return nil })
	return group.Wait()
}

// show looks at the nodes again and again while somebody watches.
func (b *board) show(ctx context.Context) {
	var checking sync.WaitGroup
	defer checking.Wait()
	for ctx.Err() == nil {
		watched, arrival := b.hub.Watched()
		if !watched {
			select {
			case <-arrival:
			case <-ctx.Done():
			}
			continue
		}
		b.checkIfDue(ctx, &checking)
		if v := b.look(ctx); ctx.Err() == nil {
			b.hub.Show(v)
		}
		sleep(ctx, b.interval)
	}
}

func (b *board) check(ctx context.Context) {
	b.asking.Lock()
	defer b.asking.Unlock()
	report, _ := b.operated.Check(ctx) // that there is no quorum is seen at once; the report says why
	if report.Nodes == nil || ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report, b.at = &report, time.Now()
	b.health = healthOf(report, b.at)
}

// checkIfDue has the nodes checked in the background, now and then and when one came back.
func (b *board) checkIfDue(ctx context.Context, checking *sync.WaitGroup) {
	if b.recheck || time.Since(b.checked) > votesEvery {
		b.recheck, b.checked = false, time.Now()
		checking.Go(func() { b.check(ctx) })
	}
}

// look asks the nodes for everything once.
func (b *board) look(ctx context.Context) view {
	b.sight, _ = b.search.Look(ctx, b.shown)
	keys := b.keys
	if len(keys) == 0 {
		for _, k := range b.sight.Keys {
			b.known[k] = true
		}
		for k := range b.known {
			keys = append(keys, k)
		}
		slices.Sort(keys)
	}
	b.mu.Lock()
	h := b.health.at(time.Now())
	b.mu.Unlock()
	v := view{health: h, Quorum: b.operated.Quorum(), Searching: len(b.keys) == 0 && !b.sight.Whole}
	b.shown = keys[:min(len(keys), mostLocks)]
	v.More = len(keys) - len(b.shown)
	keys = b.shown
	if v.More > 0 && len(b.keys) == 0 {
		// Some of the others at each look, or those that are free would be counted for ever.
		rest := slices.DeleteFunc(slices.Collect(maps.Keys(b.known)), func(k string) bool { return k <= keys[mostLocks-1] })
		keys = slices.Concat(keys, rest[:min(len(rest), mostOthers)]) // a map's order is another each time
	}
	locks := make([]*viewLock, len(keys))
	times := make(map[string]int64)
	var mu sync.Mutex // of times
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() {
			status, _ := b.operated.Inspect(ctx, key) // what is known is in the status
			now := time.Now()
			steady := func(id string, at time.Time) int64 {
				mu.Lock()
				defer mu.Unlock()
				times[key+"\n"+id] = b.steady(key+"\n"+id, at)
				return times[key+"\n"+id]
			}
			if status.Nodes != nil {
				locks[i] = b.lock(pictureOf(status, v.Quorum), now, steady)
			}
		})
	}
	all.Wait()
	b.times = times
	for i, l := range locks {
		switch {
		case l == nil:
		case len(b.keys) == 0 && l.State == "free" && l.Waiting == 0:
			delete(b.known, keys[i])
			if i >= mostLocks {
				v.More--
			}
		case i >= mostLocks:
		default:
			v.Locks = append(v.Locks, *l)
		}
	}
	slices.SortStableFunc(v.Locks, func(a, b viewLock) int { return cmp.Compare(a.rank(), b.rank()) })
	b.nodes(&v)
	b.findings(&v)
	v.Verdict = v.verdict()
	return v
}

// knows reports whether a lock may be held or awaited, though it is not listed.
func (b *board) knows(printed string) bool {
	for key := range b.known {
		if printable(key) == printed {
			return true
		}
	}
	return false
}

// rank puts what an operator looks for above the rest.
func (l *viewLock) rank() int {
	switch {
	case l.State == "in doubt" || l.State == "split":
		return 0
	case l.Waiting > 0:
		return 1
	default:
		return 2
	}
}

// steady is a time as it was published, if it has moved by no more than a measurement does.
func (b *board) steady(id string, at time.Time) int64 {
	now := b.hub.At(at)
	if was, ok := b.times[id]; ok && max(was-now, now-was) < 200 {
		return was
	}
	return now
}

// lock is a row of the page. Tokens are left out: whoever has one can release the lock.
func (b *board) lock(p picture, now time.Time, steady func(string, time.Time) int64) *viewLock {
	l := &viewLock{Key: printable(p.Key), Waiting: len(p.Waiters), Fence: b.sight.Fences[p.Key]}
	value := ""
	switch held := p.held(); {
	case p.Shared:
		l.State, l.Owner, value = "held", sharers(holdersJSON(p.Holders)), sharedMarker
	case p.Held():
		l.State, l.Owner = "held", p.Owner
		value = p.Token
		if p.Owner != "" {
			value += "@" + p.Owner
		}
	case p.maybe != nil:
		l.State, l.Owner, value = "in doubt", p.maybe.Owner, p.maybe.Value
	case held == nil:
		l.State = "in doubt"
	case p.free >= p.quorum:
		l.State = "free"
	default:
		l.State = "split"
	}
	l.Owner = printable(l.Owner)
	for _, n := range p.Nodes {
		if n.Value != "" && n.Value == value {
			l.Has++
		}
	}
	switch {
	case p.TTL < 0:
		l.Until = -1
	case p.TTL > 0:
		l.Until = steady(p.Key+" "+value, now.Add(p.TTL))
	}
	for i, w := range p.Waiters {
		if i == mostWaiters {
			break
		}
		owner := printable(w.Owner)
		l.Waiters = append(l.Waiters, viewWaiter{owner, steady(fmt.Sprint("waits ", owner, i), now.Add(-w.Waited))})
	}
	return l
}

// nodes fills in which nodes answer, and tells what has changed.
func (b *board) nodes(v *view) {
	for i, name := range b.operated.Names() {
		n := viewNode{Name: name}
		if err := b.sight.Nodes[i].Err; err != nil {
			n.Error = printable(inPlain(err))
		} else {
			v.Answers++
		}
		if down := n.Error != ""; down != b.down[name] {
			b.down[name] = down
			if down {
				b.tell(web.News{Tone: bad, Aloud: true, Text: name + " does not answer: " + n.Error})
			} else {
				b.recheck = true
				b.tell(web.News{Tone: good, Aloud: true, Text: name + " answers again."})
			}
		}
		switch is := v.health.isBarred(name); {
		case is == nil || n.Error != "":
		case is.until.IsZero():
			v.Barred++
			n.Voteless = true
		default:
			v.Barred++
			n.Barred = b.hub.At(is.until)
			if was := b.barred[name]; max(was-n.Barred, n.Barred-was) < 1000 { // each check finds it anew
				n.Barred = was
			}
			b.barred[name] = n.Barred
		}
		v.Nodes = append(v.Nodes, n)
	}
	if lost := v.Answers < v.Quorum; lost != b.lost {
		b.lost = lost
		if lost {
			b.tell(web.News{Tone: bad, Aloud: true, Text: fmt.Sprintf("No quorum: %d of %d nodes answer, and %d are needed. "+
				"No lock can be had, extended or released. Holders keep theirs until the lease ends.", v.Answers, len(v.Nodes), v.Quorum)})
		} else {
			b.tell(web.News{Tone: good, Aloud: true, Text: "There is a quorum again."})
		}
	}
}

// findings fills in what check said last.
func (b *board) findings(v *view) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.report == nil {
		return
	}
	v.Checked = b.hub.At(b.at)
	for i, n := range b.report.Nodes {
		if i < len(v.Nodes) && n.Err == nil {
			v.Nodes[i].Tells = strings.Join(slices.DeleteFunc([]string{n.Version, n.Role, uptime(n.Uptime)}, func(s string) bool { return s == "" }), ", ")
		}
	}
	for _, f := range b.report.Findings {
		v.Findings = append(v.Findings, viewFinding{f.Node, f.Severity.String(), printable(f.Message), printable(f.Advice)})
	}
}

// uptime keeps the number and its unit on one line.
func uptime(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d < 2*time.Minute:
		return fmt.Sprintf("up\u00a0%d\u00a0s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("up\u00a0%d\u00a0min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("up\u00a0%d\u00a0h", int(d.Hours()))
	default:
		return fmt.Sprintf("up\u00a0%d\u00a0days", int(d.Hours()/24))
	}
}

func (v *view) verdict() verdict {
	held, awaited := 0, 0
	for _, l := range v.Locks {
		if l.State == "held" {
			held++
			if l.Waiting > 0 {
				awaited++
			}
		}
	}
	barred := ""
	if v.Barred > 0 {
		barred = fmt.Sprintf(", %d of them may not vote%s", v.Barred, v.health.yet())
	}
	text := fmt.Sprintf("%s%s, %d are enough. %s held, %d of them awaited.", nodesThat(v.Answers, len(v.Nodes), "answers", "answer"), barred, v.Quorum, plural(held, "lock"), awaited)
	if v.More > 0 {
		text += fmt.Sprintf(" %d more are not listed.", v.More)
	}
	switch votes := v.Answers - v.Barred; {
	case votes < v.Quorum && v.Answers >= v.Quorum:
		return verdict{bad, fmt.Sprintf("No lock can be had%s: %d of %d nodes may vote, and %d are needed. Held locks are extended and released.",
			v.health.yet(), votes, len(v.Nodes), v.Quorum)}
	case v.Answers < v.Quorum:
		return verdict{bad, fmt.Sprintf("No quorum: %d of %d nodes answer, and %d are needed. No lock can be had, extended or released.", v.Answers, len(v.Nodes), v.Quorum)}
	case votes < len(v.Nodes):
		return verdict{odd, text}
	default:
		return verdict{good, text}
	}
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
