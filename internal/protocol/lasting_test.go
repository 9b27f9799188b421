package protocol

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serverSays is an error of a server.
type serverSays string

func (s serverSays) Error() string { return string(s) }
func (serverSays) RedisError()     {}

var _ redis.Error = serverSays("")

func TestTableOfLastingErrorsIsThatOfOperations(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "<!-- lasting errors -->\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	words := map[Remedies]string{NewPassword: "another password", NewRights: "other permissions of the user", 0: "nothing while the program runs"}
	told := map[string]string{}
	for _, row := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(row, " | ")
		for _, says := range regexp.MustCompile("`[^`]+`").FindAllString(cells[0], -1) {
			told[strings.Trim(says, "`")] = cells[1]
		}
	}
	for _, row := range lasting {
		assert.Equal(t, words[row.remedy], told[row.says], "%q", row.says)
		delete(told, row.says)
	}
	assert.Empty(t, told, "on the page, and not in the table")
}

func TestRemediesMendTheirOwnErrorsAlone(t *testing.T) {
	for _, row := range lasting {
		err := serverSays(row.says + " and more")
		assert.True(t, Permanent(err), "%v", err)
		for _, by := range []Remedies{NewPassword, NewRights} {
			assert.Equal(t, row.remedy != by, Permanent(Mended(err, by)), "%v mended by %v", err, by)
			assert.Equal(t, row.remedy != by, PermanentBut(err, by), "%v, waiting for %v", err, by)
			assert.ErrorIs(t, Mended(err, by), err)
			assert.EqualError(t, Mended(err, by), err.Error())
		}
	}
	for _, passing := range []string{"LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "READONLY", "MISCONF", "OOM", "NOREPLICAS", "ERR max number of clients reached"} {
		assert.False(t, Permanent(serverSays(passing+" and more")), passing)
	}
	remedy, lasts := RemedyOf(serverSays(`WRONGTYPE of "{orders:DENIED}:fence", or BADFENCE`))
	assert.True(t, lasts)
	assert.Zero(t, remedy, "the text names a key")
	assert.True(t, Permanent(Mended(redis.ErrClosed, NewPassword)))
	assert.Zero(t, testing.AllocsPerRun(10, func() { Permanent(nil) }))
}
