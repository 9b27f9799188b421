package protocol

import (
	"testing"

	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
