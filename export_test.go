package redlock

// RememberedKeys is how many keys a client remembers since a waiter waits for them, or did.
func RememberedKeys(rl *Redlock) int {
	rl.queues.mu.Lock()
	defer rl.queues.mu.Unlock()
	return len(rl.queues.byKey)
}

// AwaitKeys lets a client look after its queues as one does that waits for so many keys more.
func AwaitKeys(rl *Redlock, more int64) { rl.queues.awaited.Add(more) }
