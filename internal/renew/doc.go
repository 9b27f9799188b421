// Package renew renews locks in time, those of many together, and ends the contexts of those that a sleeping
// machine outlived.
//
// What it promises upwards: a lock that was scheduled is renewed on a goroutine of its own, not later than it
// should be, and the lock with the least time left first. No more renewals are under way than the slowest node
// can do in time. When the clocks have moved apart, the ends of all contexts that are watched are looked at.
//
// What it expects downwards is [Lock], and of it that each renewal is counted off when it was decided, and when
// all nodes have answered ([Renewer.Fewer]).
//
// Renewer.mu guards all of it, and each [Renewal]. Nothing but timers and Lock.NodeTimeout is called under it, so a
// Lock may call a Renewer while it holds its own mutex.
package renew
