package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// What a listing keeps of a lock grows with the nodes, and so does what is charged for it.
func TestListingKeepsNoMoreOfManyNodes(t *testing.T) {
	for _, nodes := range []int{1, 3, 300} {
		known := newCatalogue(nodes)
		for at := range nodes {
			s := &search{at: at}
			for i := 0; known.take(s, &page{locks: []find{{fmt.Sprintf("%d-%d", at, i), strings.Repeat("0", 32), time.Second}}}); i++ {
			}
		}
		var leases int
		for _, l := range known.leases {
			leases += 8 * cap(l)
		}
		assert.NotEmpty(t, known.leases)
		assert.LessOrEqual(t, leases+len(known.leases)*perLock, listRoom, "%d nodes", nodes)
	}
}
