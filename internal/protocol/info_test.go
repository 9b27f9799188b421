package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestParseInfo(t *testing.T) {
	info := ParseInfo("# Server\r\nredis_version:7.2.4\r\nrun_id:0f3a\r\nexecutable:C:\\redis\r\nempty:\r\n\r\n" +
		"# Replication\r\nrole:master\r\nrole:slave\r\nno colon\r\n  spaced:1  \r\nlast:without a line's end")
	assert.Equal(t, Info{
		"redis_version": "7.2.4", "run_id": "0f3a", "executable": `C:\redis`, "empty": "", "role": "slave", "spaced": "1",
		"last": "without a line's end",
	}, info)
	assert.Equal(t, "0f3a", info.RunID())

	assert.Empty(t, ParseInfo(""))
	assert.Empty(t, ParseInfo("# Server\r\n").RunID())
}

func TestUptime(t *testing.T) {
	type answer struct {
		d  time.Duration
		ok bool
	}
	for text, want := range map[string]answer{
		"uptime_in_seconds:0":                    {0, true},
		"uptime_in_seconds:90\r\n":               {90 * time.Second, true},
		"uptime_in_seconds:-5":                   {0, true}, // a clock that was set back
		"uptime_in_seconds:9223372036854775807":  {maxUptime, true},
		"uptime_in_seconds:9223372036854775808":  {0, false},
		"uptime_in_seconds:-9223372036854775808": {0, true},
		"uptime_in_seconds:":                     {0, false},
		"uptime_in_seconds:1.5":                  {0, false},
		"uptime_in_seconds:soon":                 {0, false},
		"uptime_in_days:3":                       {0, false},
		"":                                       {0, false},
	} {
		d, ok := ParseInfo(text).Uptime()
		assert.Equal(t, want, answer{d, ok}, "%q", text)
	}
}

func TestNumber(t *testing.T) {
	info := ParseInfo("maxmemory:104857600\nnegative:-1\nempty:\nword:many\nhuge:18446744073709551615")
	for name, want := range map[string]int64{"maxmemory": 104857600, "negative": -1} {
		n, ok := info.Number(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, n, name)
	}
	for _, name := range []string{"empty", "word", "huge", "missing"} {
		_, ok := info.Number(name)
		assert.False(t, ok, name)
	}
}

func TestReportOfCommands(t *testing.T) {
	for text, want := range map[string]int64{
		"":                   0,
		"# Commandstats\r\n": 0,
		"# Commandstats\r\ncmdstat_debug:calls=2,usec=7\r\ncmdstat_swapdb:calls=3,usec=1,usec_per_call=0.33\r\ncmdstat_get:calls=9,usec=1\r\n": 5,
		"# Commandstats\r\ncmdstat_slaveof:calls=1\r\ncmdstat_replicaof:calls=1,usec=2\r\ncmdstat_cluster|failover:calls=1,usec=1\r\n":         3,
		"# Commandstats\r\ncmdstat_debug:calls=-1,usec=7\r\ncmdstat_swapdb:none\r\n":                                                           0,
	} {
		var s ServerReport
		assert.NoError(t, s.ReadCommands(text))
		assert.Equal(t, want, s.Puts, text)
	}
	var s ServerReport
	assert.ErrorContains(t, s.ReadCommands("OK"), `unexpected reply "OK" to INFO commandstats`)
}

func TestReportOfStart(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef01234567"
	for text, want := range map[string]int64{
		"server_time_usec:1700000000999999\r\nuptime_in_seconds:100\r\n":  1699999900,
		"server_time_usec:1700000000000000\r\nuptime_in_seconds:-100\r\n": 1700000100, // its clock was set back
		"uptime_in_seconds:100\r\n":                                       0,
		"server_time_usec:soon\r\nuptime_in_seconds:100\r\n":              0,
	} {
		var s ServerReport
		assert.NoError(t, s.ReadServer("# Server\r\nrun_id:"+id+"\r\n"+text))
		assert.Equal(t, want, s.Start, text)
	}
}
