package redlock

import "slices"

// weight orders the nodes that may keep the wait queue of a key: the highest is the
// arbiter. All clients and all versions must agree on it. Rendezvous hashing spreads the
// queues evenly and moves only those of a node that is gone.
func weight(key, node uint64) uint64 {
	x := key + node
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fnv1a is the 64 bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// byWeight is the nodes' indexes, the arbiter of the key first.
func byWeight(key uint64, nodes []uint64) []int {
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if weight(key, nodes[a]) > weight(key, nodes[b]) {
			return -1
		}
		return 1
	})
	return order
}
