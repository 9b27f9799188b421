package redlock

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// LogHooks returns hooks that log to logger, or to slog.Default() if it is nil, with the operation's context:
//
//	Debug  waiting for a lock; acquired, extended, released; not acquired or extended because another
//	       holds it, it was released, the Redlock was closed, or the caller gave up
//	Info   acquired, or given up, after a wait of 8s or more, at most one line in 5s; node up or votes
//	Warn   not acquired or extended otherwise; not released; node down or voteless; node or lock degraded
//	Error  lock lost
//
// The attributes are key, elapsed and err, and where they apply token, attempts, waited, until, ttl, renewal,
// held, node, stack and lacks. Of a token only the first eight digits are logged.
func LogHooks(logger *slog.Logger) *Hooks {
	if logger == nil {
		logger = slog.Default()
	}
	return &Hooks{
		Waiting: func(ctx context.Context, i WaitInfo) {
			if logger.Enabled(ctx, slog.LevelDebug) {
				logger.LogAttrs(ctx, slog.LevelDebug, "waiting for lock", withError([]slog.Attr{keyAttr(i.Key), slog.Int("attempts", i.Attempts)}, i.Err)...)
			}
		},
		Acquired: logAcquired(logger),
		Extended: func(ctx context.Context, i ExtendInfo) {
			message, level := "lock extended", slog.LevelDebug
			if i.Err != nil {
				message, level = "lock not extended", failureLevel(ctx, i.Err)
			}
			if !logger.Enabled(ctx, level) {
				return
			}
			logger.LogAttrs(ctx, level, message, withError([]slog.Attr{
				keyAttr(i.Key), slog.Duration("elapsed", i.Elapsed), slog.String("token", withoutSecret(i.Token)),
				slog.Duration("ttl", i.TTL), slog.Bool("renewal", i.Renewal), slog.Time("until", i.Until),
			}, i.Err)...)
		},
		Released: func(ctx context.Context, i ReleaseInfo) {
			message, level := "lock released", slog.LevelDebug
			if i.Err != nil {
				message, level = "lock not released", slog.LevelWarn
			}
			if !logger.Enabled(ctx, level) {
				return
			}
			logger.LogAttrs(ctx, level, message, withError([]slog.Attr{
				keyAttr(i.Key), slog.Duration("elapsed", i.Elapsed), slog.String("token", withoutSecret(i.Token)),
				slog.Duration("held", i.Held),
			}, i.Err)...)
		},
		Lost: func(ctx context.Context, i LostInfo) {
			logger.LogAttrs(ctx, slog.LevelError, "lock lost",
				withError([]slog.Attr{keyAttr(i.Key), slog.String("token", withoutSecret(i.Token))}, i.Err)...)
		},
		NodeDown: func(i NodeInfo) {
			attrs := withError([]slog.Attr{slog.String("node", i.Node)}, i.Err)
			if p := interface{ Stack() []byte }(nil); errors.As(i.Err, &p) {
				attrs = append(attrs, slog.String("stack", string(p.Stack())))
			}
			logger.LogAttrs(context.Background(), slog.LevelWarn, "redlock node down", attrs...)
		},
		NodeUp: func(i NodeInfo) {
			logger.LogAttrs(context.Background(), slog.LevelInfo, "redlock node up", slog.String("node", i.Node))
		},
		NodeBarred: func(i VoteInfo) {
			attrs := withError([]slog.Attr{slog.String("node", i.Node)}, i.Err)
			if !i.Until.IsZero() {
				attrs = append(attrs, slog.Time("until", i.Until))
			}
			logger.LogAttrs(context.Background(), slog.LevelWarn, "redlock node has no vote", attrs...)
		},
		NodeVotes: func(i VoteInfo) {
			logger.LogAttrs(context.Background(), slog.LevelInfo, "redlock node votes", slog.String("node", i.Node))
		},
		Degraded: func(i DegradedInfo) {
			message, about := "redlock node degraded", slog.String("node", i.Node)
			if i.Key != "" {
				message, about = "redlock lock degraded", keyAttr(i.Key)
			}
			logger.LogAttrs(context.Background(), slog.LevelWarn, message,
				withError([]slog.Attr{about, slog.String("lacks", i.Lacks)}, i.Err)...)
		},
	}
}

const (
	longWait    = 8 * time.Second // is worth a line
	seldomEvery = 5 * time.Second
)

// seldom limits a log line to one per interval.
type seldom struct{ last atomic.Int64 }

func (s *seldom) may(now time.Time) bool {
	last, at := s.last.Load(), now.UnixNano()
	return at-last >= int64(seldomEvery) && s.last.CompareAndSwap(last, at)
}

// logAcquired is Hooks.Acquired of LogHooks.
func logAcquired(logger *slog.Logger) func(context.Context, AcquireInfo) {
	var seldom seldom
	return func(ctx context.Context, i AcquireInfo) {
		message, level := "lock acquired", slog.LevelDebug
		if i.Err != nil {
			message, level = "lock not acquired", failureLevel(ctx, i.Err)
		}
		if level == slog.LevelDebug && i.Waited >= longWait && seldom.may(i.Start.Add(i.Elapsed)) {
			level = slog.LevelInfo
		}
		if !logger.Enabled(ctx, level) {
			return
		}
		attrs := []slog.Attr{keyAttr(i.Key), slog.Duration("elapsed", i.Elapsed), slog.Int("attempts", i.Attempts)}
		if !i.WaitStart.IsZero() {
			attrs = append(attrs, slog.Duration("waited", i.Waited))
		}
		if i.Err == nil {
			attrs = append(attrs, slog.String("token", withoutSecret(i.Token)), slog.Time("until", i.Until))
		}
		logger.LogAttrs(ctx, level, message, withError(attrs, i.Err)...)
	}
}

// failureLevel is Debug for everyday failures: another holds the lock, the caller gave up,
// or the lock or the Redlock has been done with. An outage of the nodes is a warning, even
// if the caller gave up because of it.
func failureLevel(ctx context.Context, err error) slog.Level {
	switch {
	case errors.Is(err, ErrNoQuorum):
		return slog.LevelWarn
	case errors.Is(err, ErrHeld), errors.Is(err, ErrReleased), errors.Is(err, ErrClosed), errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil:
		return slog.LevelDebug
	default:
		return slog.LevelWarn
	}
}

// keyAttr shortens long keys in the same way as errors.
func keyAttr(key string) slog.Attr {
	if len(key) > protocol.MostOfKey {
		key = quoteKey(key)
	}
	return slog.String("key", key)
}

func withError(attrs []slog.Attr, err error) []slog.Attr {
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	return attrs
}
