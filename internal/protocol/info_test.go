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
