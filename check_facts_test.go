package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReadInfo(t *testing.T) {
	for _, c := range []struct {
		name     string
		sections []string
		want     NodeReport
	}{
		{name: "nothing"},
		{name: "all sections", sections: []string{
			"# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nrun_id:0f3a\r\nuptime_in_seconds:90\r\n",
			"role:master\r\nconnected_slaves:2\r\n",
			"maxmemory:1048576\r\nmaxmemory_policy:noeviction\r\n",
			"evicted_keys:12\r\n",
			"aof_enabled:1\r\n",
			"cluster_enabled:0\r\n",
		}, want: NodeReport{
			Version: "redis 7.2.4", Mode: "standalone", RunID: "0f3a", Uptime: 90 * time.Second, aged: true, Role: "master", Replicas: 2,
			MaxMemory: 1 << 20, MaxMemoryPolicy: "noeviction", EvictedKeys: 12, counted: true, AppendOnly: "yes",
		}},
		{name: "Valkey gives a Redis version, too", sections: []string{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:standalone\r\nredis_mode:standalone\r\n"},
			want: NodeReport{Version: "valkey 8.0.1", Mode: "standalone"}},
		{name: "no persistence", sections: []string{"aof_enabled:0\r\n"}, want: NodeReport{AppendOnly: "no"}},
		{name: "sentinel", sections: []string{"redis_mode:sentinel\r\n", "cluster_enabled:0"}, want: NodeReport{Mode: "sentinel"}},
		{name: "cluster by its own section only", sections: []string{"cluster_enabled:1\r\n"}, want: NodeReport{Mode: "cluster"}},
		{name: "the section about clusters knows best", sections: []string{"redis_mode:standalone\r\n", "cluster_enabled:1\r\n"}, want: NodeReport{Mode: "cluster"}},
		{name: "no cluster", sections: []string{"cluster_enabled:0\r\n"}, want: NodeReport{Mode: "standalone"}},
		{name: "a clock that was set back", sections: []string{"uptime_in_seconds:-5\r\n"}, want: NodeReport{aged: true}},
		{name: "a later section that lacks a field", sections: []string{"run_id:0f3a\r\nrole:slave\r\n", "run_id:\r\nused_memory:1\r\n"},
			want: NodeReport{RunID: "0f3a", Role: "slave"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n NodeReport
			for _, s := range c.sections {
				n.readInfo(s)
			}
			assert.Equal(t, c.want, n)
		})
	}
}
