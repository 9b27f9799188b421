package admin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// setup is what findings depend on besides the facts about the nodes.
type setup struct {
	TTL, NodeTimeout time.Duration
	Quorum           int
	Guard            time.Duration       // for how long a restarted node is barred; 0: not at all
	Own              protocol.ClientName // of a client that would use these nodes
}

// remember fills in since when each node's data has been remembering, by the rules of
// the package guard, for a client that comes now. It returns what that client would know.
func remember(all []facts, fixed bool, now tick.Instant) *guard.Memories {
	ms := guard.NewMemories(len(all), fixed)
	for i := range all {
		if all[i].serves() {
			ms.See(i, all[i].report(now), now.Mono)
		}
	}
	for i := range all {
		if at, ok := ms.Remembers(i); ok {
			all[i].RemembersSince = now.When(at)
		}
	}
	return ms
}

// report is what a client that asks now is told of the node.
func (f *facts) report(now tick.Instant) protocol.ServerReport {
	s := f.seen
	s.Asked, s.Role, s.At, s.Time = true, f.Role, now.Mono, time.Duration(now.Wall)+f.ClockOffset
	return s
}

// barring fills in for how long yet each node's grants do not count, and why, for a client that knows ms
// and has looked at all nodes until it has no mark to write; it takes all nodes to tell a fleet's first use.
func barring(all []facts, ms *guard.Memories, period time.Duration, now tick.Instant) {
	lookAtAll(all, ms, now)
	names, ids := make([]string, len(all)), make([]string, len(all))
	for i := range all {
		names[i], ids[i] = all[i].Node, all[i].RunID
	}
	newFleet := len(ms.Unseen(names)) > 0
	for i := range all {
		f := &all[i]
		// Of a node that was not asked all that matters is not known.
		left := ms.Bar(i, period, now.Mono)
		if f.Err != nil || f.cut || left == 0 {
			continue
		}
		f.NoVote = ms.NoVote(i, left, now, names)
		if errors.As(f.NoVote, new(guard.BarredError)) {
			f.BarredFor, f.barred, f.newFleet = left, ms.Why(i, names), newFleet
		}
	}
	for _, t := range guard.Duplicates(ids) {
		all[t.Second].NoVote = guard.SameServer(names[t.First])
	}
}

// lookAtAll shows all nodes to ms as a client's looks do, which writes the marks that are missing.
func lookAtAll(all []facts, ms *guard.Memories, now tick.Instant) {
	reports := make([]protocol.ServerReport, len(all))
	for i := range all {
		reports[i] = all[i].report(now)
	}
	for look := range int64(guard.FirstLooks) {
		for i := range all {
			if !all[i].serves() {
				continue
			}
			s := &reports[i]
			s.At = now.Mono + look
			if w, _ := ms.See(i, *s, s.At); w != nil {
				all[i].markless = all[i].markless || look == 0
				if s.Mark = w.Written(s.Time); all[i].denies(forMemory) != nil {
					s.Mark = protocol.MarkOfError(all[i].denies(forMemory))
				}
				ms.See(i, *s, s.At)
			}
		}
	}
}

// voteless fills in which nodes have no vote where there is no guard.
func voteless(all []facts) {
	for i := range all {
		switch f := &all[i]; {
		case !f.serves():
		case f.Role == "slave":
			f.NoVote = guard.ErrReplica
		case f.Role == "sentinel":
			f.NoVote = errors.New("it is a Sentinel")
		default:
			f.NoVote = f.denies(forLocks)
		}
	}
}

// addFinding notes a finding about one node.
type addFinding func(severity Severity, code, message, advice string)

// addAbout notes a finding about the node of that name, or about all nodes if it is empty.
type addAbout func(node string, severity Severity, code, message, advice string)

// judge makes findings from the facts, the worst first, otherwise in the order of the nodes.
func judge(all []facts, s setup) []Finding {
	found := []Finding{}
	add := func(node string, severity Severity, code, message, advice string) {
		found = append(found, Finding{Node: node, Severity: severity, Code: code, Message: message, Advice: advice})
	}
	for _, f := range all {
		judgeNode(f, s, func(severity Severity, code, message, advice string) {
			add(f.Node, severity, code, message, advice)
		})
	}
	judgeDuplicates(all, s, add)
	judgeAges(all, s, add)
	judgeClocks(all, add)
	judgeNumber(all, s, add)
	judgeLists(all, s.Own, add)
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found
}

// judgeNode makes the findings that one node's facts are enough for.
func judgeNode(f facts, s setup, add addFinding) {
	if judgeService(f, add) {
		return
	}
	judgeRole(f, add)
	judgeVote(f, add)
	judgeBarred(f, s, add)
	judgePersistence(f, s, add)
	judgeEviction(f, add)
	judgeLatency(f, s, add)
	if outdated(f.Version) {
		add(SeverityWarning, "version", f.Version+" is older than Redis 6.2, which is the oldest that is supported", "upgrade the server")
	}
	judgeRights(f, add)
	judgeMark(f, add)
	judgePuts(f, s, add)
	for _, u := range f.unread {
		add(SeverityInfo, "unread", fmt.Sprintf("%s cannot be read (%s), so it is not known %s", u.what, u.err, u.means),
			"look it up in the server's configuration, or check as a user who may read it")
	}
	if f.cut {
		add(SeverityWarning, "incomplete", "time was over before the node had answered all questions", "check again, with more time")
	}
}

// judgeService finds nodes of which nothing can be read, and reports whether this is one.
func judgeService(f facts, add addFinding) bool {
	switch {
	case !f.Reachable && (strings.Contains(f.Err.Error(), "tls: ") || strings.Contains(f.Err.Error(), "x509: ")):
		add(SeverityCritical, "refused", fmt.Sprintf("there is no trust between it and us: %v", f.Err),
			"fix what the error says: a certificate, its authority, or redis:// for rediss://")
	case !f.Reachable && noRedis(f.Err):
		add(SeverityCritical, "no-redis", fmt.Sprintf("something else than a Redis server answers there: %v", f.Err),
			"check the host and the port, and whether a proxy stands in between")
	case !f.Reachable:
		add(SeverityWarning, "unreachable", "cannot be reached: "+f.Err.Error(),
			"bring the node back, or fix the network to it; until then one failure fewer is tolerated")
	case f.Err != nil:
		severity := SeverityWarning
		if protocol.Permanent(f.Err) {
			severity = SeverityCritical
		}
		add(severity, "refused", fmt.Sprintf("the server answers, but does not serve us: %v", f.Err),
			"fix what the error says: password, user, or a server that is still loading")
	default:
		return false
	}
	return true
}

// noRedis tells by the client's error that what was read is not Redis' protocol. go-redis has no value
// for it.
func noRedis(err error) bool {
	text := err.Error()
	return strings.Contains(text, "redis: can't parse ") || strings.Contains(text, "redis: invalid reply")
}

// judgeRole finds servers that are no independent masters, and replicas.
func judgeRole(f facts, add addFinding) {
	switch f.Role {
	case "slave":
		add(SeverityCritical, "replica", "this is a replica: it grants nothing", "use its master, or promote it; a quorum needs independent masters")
	case "sentinel":
		add(SeverityCritical, "sentinel", "this is a Sentinel: it holds no keys", "use a failover client, which asks it for the master")
	}
	if f.Mode == "cluster" {
		add(SeverityCritical, "cluster-node", "the node runs in cluster mode: it answers MOVED for most keys",
			"use a server with cluster-enabled no")
	}
	if f.Role == "master" && f.Replicas > 0 {
		add(SeverityWarning, "replicas", fmt.Sprintf("%s attached: one that is promoted may lack the latest locks, and grant them again", plural(f.Replicas, "replica")),
			"do not promote a replica within the longest TTL of a failure, or run the node without automatic failover")
	}
}

// judgePersistence finds servers that forget locks when they or their machines restart.
func judgePersistence(f facts, s setup, add addFinding) {
	// Locks that a restart forgets do no harm if the guard notices the restart.
	severity, advice := SeverityWarning, fmt.Sprintf(
		"set appendonly yes and appendfsync always, or keep a crashed node down for the longest TTL in use (here at least %v)", s.TTL)
	if s.Guard > 0 {
		severity, advice = SeverityInfo, fmt.Sprintf("nothing, as long as no client uses a TTL above the restart guard of %v", s.Guard)
	}
	switch {
	case f.AppendOnly == "no":
		add(severity, "persistence", "appendonly no: a restart forgets the locks that the node granted", advice)
	case f.AppendOnly == "yes" && f.AppendFsync == "everysec":
		add(severity, "persistence", "appendfsync everysec: a crash of the machine, or of the server while the disk is slow, forgets the locks of about the last second", advice)
	case f.AppendOnly == "yes" && f.AppendFsync == "no":
		add(severity, "persistence", "appendfsync no: a crash of the machine forgets the locks that the system had not written yet, some 30s as a rule", advice)
	}
}

// judgeEviction finds servers that throw away locks when their memory is full.
func judgeEviction(f facts, add addFinding) {
	already := ""
	if f.EvictedKeys > 0 {
		already = fmt.Sprintf("; it has evicted %s since its start", plural(f.EvictedKeys, "key"))
	}
	switch {
	case f.MaxMemoryPolicy == "" && f.EvictedKeys > 0:
		add(SeverityCritical, "eviction", "the server has been full and has thrown away keys, which may be locks"+already,
			"set maxmemory-policy noeviction, and give the server more memory")
	case f.MaxMemoryPolicy == "noeviction" && f.EvictedKeys > 0:
		add(SeverityInfo, "eviction", "maxmemory-policy is noeviction now, and was another before"+already, "nothing, if it stays so")
	case f.MaxMemoryPolicy == "" || f.MaxMemoryPolicy == "noeviction":
	case f.MaxMemory > 0:
		add(SeverityCritical, "eviction", fmt.Sprintf("maxmemory-policy %s with maxmemory %d: the server throws away locks when it is full%s", f.MaxMemoryPolicy, f.MaxMemory, already),
			"set maxmemory-policy noeviction")
	default:
		add(SeverityWarning, "eviction", fmt.Sprintf("maxmemory-policy %s would throw away locks; only the missing maxmemory prevents it", f.MaxMemoryPolicy),
			"set maxmemory-policy noeviction")
	}
}

// judgeLatency finds nodes that are too slow for the timeout per node.
func judgeLatency(f facts, s setup, add addFinding) {
	switch {
	case f.Latency >= s.NodeTimeout:
		add(SeverityCritical, "slow", fmt.Sprintf("the quickest answer took %v, and NodeTimeout is %v: the node never votes in time", rounded(f.Latency), s.NodeTimeout),
			"use nearer nodes, or a longer TTL or NodeTimeout")
	case f.Latency >= s.NodeTimeout/2:
		add(SeverityWarning, "slow", fmt.Sprintf("the quickest answer took %v of the NodeTimeout of %v", rounded(f.Latency), s.NodeTimeout),
			"use nearer nodes, or a longer TTL or NodeTimeout")
	}
}

// judgeRights finds rights that the user lacks: one finding for each thing that needs them.
func judgeRights(f facts, add addFinding) {
	of := make(map[need][]string)
	said := make(map[need]string)
	for _, d := range f.lacks {
		if d.need == forBundles && f.seen.Native != protocol.NoNative {
			continue // the server has a shorter command for a release, which is used instead
		}
		of[d.need], said[d.need] = append(of[d.need], d.what), d.err
	}
	for _, r := range []struct {
		need     need
		severity Severity
		code     string
		means    string
	}{
		{forLocks, SeverityCritical, "rights", "locks cannot be acquired, extended or released on this node"},
		{forLines, SeverityWarning, "rights-queue", "an acquire that waits fails at once, unless Options.NoQueue is set"},
		{forNotices, SeverityWarning, "rights-notify", "waiters find a release by timers, some time later"},
		{forMemory, SeverityCritical, "rights-memory", "this node has no vote; see Options.NoRestartGuard"},
		{forSharing, SeverityInfo, "rights-shared", "shared locks and semaphores fail here, and nothing else does"},
		{forBundles, SeverityInfo, "rights-bundle", "releases of several locks at once cost this node more than they need to"},
		{forNames, SeverityInfo, "rights-name", "connections of this user do not say which list of nodes their client has"},
		{forDigests, SeverityInfo, "rights-digest", "each script goes to this node as its text"},
		{forForeign, SeverityInfo, "rights-foreign", "a large value that others put under a lock's key is read whole by this node's scripts, and each script is in its ACL LOG"},
	} {
		if what := slices.Compact(of[r.need]); len(what) > 0 {
			add(r.severity, r.code, fmt.Sprintf("this user lacks %s (%s): %s", strings.Join(what, ", "), said[r.need], r.means), "grant it to the user by ACL SETUSER")
		}
	}
	if f.masked {
		add(SeverityInfo, "rights-keys", "this user may not touch every key, so it is not known whether it may touch those of your locks",
			"see that the user's key patterns cover each lock's key and its line, {key}:line")
	}
}

// judgeMark finds nodes where others have something under the key of the memory mark.
func judgeMark(f facts, add addFinding) {
	if f.noMark != "" {
		add(SeverityCritical, "memory-mark", fmt.Sprintf("%q holds what is no memory mark, so this node has no vote", f.noMark),
			"move it: the key belongs to this library, or give Options.KeyPrefix another value in all clients")
	}
}

// judgeVote finds a node that has no vote, for a reason of which there is no other finding.
func judgeVote(f facts, add addFinding) {
	if f.NoVote == nil || f.BarredFor > 0 || f.Role == "slave" || f.Role == "sentinel" || f.noMark != "" ||
		f.denies(forMemory) != nil || f.denies(forLocks) != nil || errors.Is(f.NoVote, guard.ErrDuplicateNode) {
		return
	}
	severity, advice := SeverityWarning, "wait, and check again; if it stays so, look for what stands between the server and us"
	if protocol.Permanent(f.NoVote) {
		severity, advice = SeverityCritical, "change what is named; or set Options.NoRestartGuard in all clients, whose comment says what that costs"
	}
	add(severity, "no-vote", "has no vote, so one failure fewer is tolerated: "+protocol.OneLine(f.NoVote.Error()), advice)
}

// judgePuts tells of a server whose data was put in place, or might have been.
func judgePuts(f facts, s setup, add addFinding) {
	if f.Puts > 0 && s.Guard > 0 {
		add(SeverityInfo, "puts", fmt.Sprintf("since its start it was told %s to put other data in place (DEBUG, SWAPDB, REPLICAOF, SLAVEOF, FAILOVER): each time it has no vote for %v",
			plural(f.Puts, "time"), s.Guard), "avoid what counts likewise: DEBUG SLEEP, a shared server that swaps databases, CONFIG RESETSTAT")
	}
}

// judgeDuplicates finds servers that are two nodes.
func judgeDuplicates(all []facts, s setup, add addAbout) {
	means := "it votes twice, and two lost votes are one failure"
	if s.Guard > 0 {
		means = "the two have one vote"
	}
	ids := make([]string, len(all))
	for i, f := range all {
		ids[i] = f.RunID
	}
	for _, t := range guard.Duplicates(ids) {
		first, second := all[t.First], all[t.Second]
		add(second.Node, SeverityCritical, "same-server", fmt.Sprintf("the same server as %s (run id %s): %s", first.Node, second.RunID, means),
			"give each server once; a database or a second name does not make another node")
	}
}

// judgeAges finds nodes that were started so recently that locks which they granted before
// may still be held.
func judgeAges(all []facts, s setup, add addAbout) {
	limit := s.TTL
	if s.Guard > 0 {
		limit = s.Guard
	}
	young := func(f facts) bool { return f.aged && f.Uptime-time.Second < limit } // see NodeReport
	everybody := !slices.ContainsFunc(all, func(f facts) bool { return !young(f) })
	for _, f := range all {
		switch {
		case f.BarredFor > 0 || !young(f):
		case everybody:
			add(f.Node, SeverityInfo, "young", fmt.Sprintf("started %v ago, as all nodes were lately: taken for a first start, with nothing to forget", f.Uptime),
				"nothing, if it was one")
		case s.Guard > 0: // which would bar it if it had to
		case f.AppendOnly == "yes" && f.AppendFsync == "always":
		default:
			add(f.Node, SeverityWarning, "young", fmt.Sprintf("started %v ago, less than the TTL of %v: it may have forgotten locks that are still held", f.Uptime, limit),
				"keep a restarted node down for the longest TTL, and restart one node at a time")
		}
	}
}

// judgeBarred finds a node whose grants do not count yet.
func judgeBarred(f facts, s setup, add addFinding) {
	if f.BarredFor <= 0 {
		return
	}
	message := f.barred
	if f.aged && f.Uptime-time.Second < s.Guard && !f.newFleet {
		message += fmt.Sprintf("; started %v ago", f.Uptime)
	}
	message += fmt.Sprintf("; the restart guard does not count its grants for %v more", tenths(f.BarredFor))
	advice := "wait; restart or flush no other node before that"
	if f.newFleet {
		advice = "start that node, or wait"
	}
	if f.markless {
		message += "; that time begins when a client connects, and none has since"
		advice = "let a client connect, or 'redlock check --settle', and wait; restart or flush no other node before that"
	}
	add(SeverityWarning, "barred", fmt.Sprintf("%s (for locks with a TTL of %v; longer for longer ones)", message, s.TTL), advice)
}

// clockPatience is by how much clocks may differ before Check says so.
const clockPatience = time.Second

// judgeClocks compares the nodes' clocks with each other and with ours.
func judgeClocks(all []facts, add addAbout) {
	var early, late *facts
	for i := range all {
		f := &all[i]
		if !f.timed {
			continue
		}
		if early == nil || f.ClockOffset+f.ClockMargin < early.ClockOffset+early.ClockMargin {
			early = f
		}
		if late == nil || f.ClockOffset-f.ClockMargin > late.ClockOffset-late.ClockMargin {
			late = f
		}
		if off := f.ClockOffset; max(off, -off)-f.ClockMargin > clockPatience {
			add(f.Node, SeverityInfo, "clock-local", fmt.Sprintf("its clock differs from this machine's by %v; locks do not depend on that", rounded(off)),
				"synchronize the clocks, of this machine too, so that logs and times can be compared")
		}
	}
	if early == nil {
		return
	}
	if apart := (late.ClockOffset - late.ClockMargin) - (early.ClockOffset + early.ClockMargin); apart > clockPatience {
		add("", SeverityWarning, "clocks-apart", fmt.Sprintf("the clock of %s is %v ahead of that of %s: fencing tokens may lose their order when counters are lost, and times in wait queues are off",
			late.Node, rounded(late.ClockOffset-early.ClockOffset), early.Node), "synchronize the nodes' clocks")
	}
}

// judgeNumber makes the findings about how many nodes there are and how many of them serve us.
func judgeNumber(all []facts, s setup, add addAbout) {
	n, votes := count(all, facts.serves), count(all, facts.votes)
	switch {
	case n < s.Quorum:
		add("", SeverityCritical, "no-quorum", fmt.Sprintf("%d of %d nodes serve us, and %d are needed: no lock can be acquired or extended", n, len(all), s.Quorum),
			"bring nodes back before anything else; do not point clients at other nodes")
	case votes < s.Quorum:
		add("", SeverityCritical, "no-quorum", fmt.Sprintf("%d of %d nodes serve us and may vote, and %d are needed: no lock can be acquired%s; held ones are extended and released",
			votes, len(all), s.Quorum, forLeft(untilQuorum(all, s.Quorum))), "wait for the barred nodes, or bring others back; do not point clients at other nodes")
	}
	switch n = len(all); {
	case n == 1:
		add("", SeverityInfo, "single-node", "there is one node, so its failure is the failure of all locks", "use three or five independent nodes if that is not enough")
	case n%2 == 0:
		add("", SeverityInfo, "even-number", fmt.Sprintf("%d nodes tolerate %s, no more than %s", n, plural(n-s.Quorum, "failure"), does(n-1)), "use an odd number of nodes")
	}
}

// outdated reports whether the version is a Redis below 6.2. One that cannot be parsed is not.
func outdated(version string) bool {
	number, redis := strings.CutPrefix(version, "redis ")
	_, _, parsed := protocol.ParseVersion(number)
	return redis && parsed && !protocol.AtLeast(number, 6, 2)
}

func plural[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func does(n int) string {
	if n == 1 {
		return "1 node does"
	}
	return fmt.Sprintf("%d nodes do", n)
}

// untilQuorum is how long it takes until a quorum may vote if nothing else happens; 0 if that
// does not help.
func untilQuorum(all []facts, quorum int) time.Duration {
	var left []time.Duration
	for _, f := range all {
		if f.votes() || f.BarredFor > 0 {
			left = append(left, f.BarredFor)
		}
	}
	if len(left) < quorum {
		return 0
	}
	slices.Sort(left)
	return left[quorum-1]
}

func forLeft(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(" for %v more", tenths(d))
}

// tenths is never 0 of what is not.
func tenths(d time.Duration) time.Duration {
	const tenth = 100 * time.Millisecond
	return (d + tenth - 1).Truncate(tenth)
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
