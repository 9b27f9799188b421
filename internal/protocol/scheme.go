package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Hinted is WithHint, and adds what may help if one end speaks TLS and the other does not: a server
// without TLS waits for the rest of a command, and one with it hangs up.
func Hinted(client redis.UniversalClient, err error) error {
	err = WithHint(err)
	c, ok := client.(*redis.Client)
	if !ok || err == nil || IsServerError(err) {
		return err
	}
	switch with := c.Options().TLSConfig; {
	case with != nil && isTimeout(err):
		return fmt.Errorf("%w; if it does not speak TLS, the URL begins with redis://, not rediss://", err)
	case with != nil && hungUp(err) && len(with.Certificates) == 0:
		// The alert that says so is lost if the server closes before it has read what we sent.
		return fmt.Errorf("%w; if it wants a certificate of its clients, give it one in Options.TLS", err)
	case with == nil && hungUp(err):
		return fmt.Errorf("%w; if it speaks TLS only, the URL begins with rediss://, not redis://", err)
	default:
		return err
	}
}

func hungUp(err error) bool {
	if h := (*Hangup)(nil); errors.As(err, &h) && h.Heard {
		return false // TLS is not what it did not understand
	}
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) || errors.As(err, &n) && n.Timeout()
}

// OneLine is a text without line breaks, for errors and tables.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
