package lane

import "time"

// breaker tells whether the node answers. Two things close a lane: a batch that is overdue refuses
// acquires until it is answered (down and overdue, which Lane.tick sets), and where no connection can
// be had nothing is sent for a pause that doubles. Its lane's mutex guards it.
type breaker struct {
	down    bool // the last batch was not answered, or one is overdue
	overdue bool // down for the latter alone
	backoff time.Duration
	until   int64 // nothing is sent before this, but a release to find out
	err     error // of the last try
}

// returned notes how a batch ended.
func (b *breaker) returned(heard bool) {
	b.backoff = min(max(2*b.backoff, MinBackoff), MaxBackoff)
	if heard {
		b.backoff = 0
	}
}

// failed notes that not even a connection could be had.
func (b *breaker) failed(err error, now int64) { b.until, b.err = now+int64(b.backoff), err }
