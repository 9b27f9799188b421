package redlock

// NodeOrder is the order in which nodes are asked to keep the line of a key.
func (m *Mutex) NodeOrder() []int { return m.nodeOrder() }

// Line is the key of the line.
func (m *Mutex) Line() string { return m.line.(string) }

// Waits reports how many of this Redlock wait in lines, and how many subscriptions it has.
func (rl *Redlock) Waits() (waiters, ears int) {
	rl.lines.mu.Lock()
	defer rl.lines.mu.Unlock()
	for _, q := range rl.lines.queues {
		waiters += q.waiters.Len()
	}
	return waiters, len(rl.lines.ears)
}

// LineName is the key of the line of a Redis key.
var LineName = lineName
