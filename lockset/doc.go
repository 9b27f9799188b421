// Package lockset holds several locks at once: all of them, or none.
//
//	transfer := lockset.New(rl.Mutex("account:1"), rl.Mutex("account:2"))
//	err := transfer.Do(ctx, func(ctx context.Context, locks lockset.Locks) error {
//		return move(ctx, amount)
//	})
//
// Sets cannot deadlock with each other, whatever the order in which they name their locks, and each has
// its turn. While a set waits for one lock, those that it holds are renewed. The context of Do's
// function ends with the first lock that is lost.
//
// Free locks are acquired in one round trip, however many they are. If one is refused, the set gives the
// others back, waits in the queue of that one, and asks for the rest while it holds it. So a set that waits for a
// lock that is held for long keeps no other client waiting. From its second wait on it keeps those locks whose
// keys come before the one that it waits for, so that it has all of them in the end even if none is ever
// free for long. Every set waits only for a key greater than all that it holds, so there can be no circle of
// sets that wait for each other.
//
// That order is the one of Member.Key. It is the same for all clients if the members of a set are of one
// Redlock, or of Redlocks that have the same Options.KeyPrefix. A program that acquires one lock while it
// holds another by itself has no such promise.
package lockset
