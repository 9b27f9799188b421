package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

// Hinted is WithHint, and adds what may help if one end speaks TLS and the other does not: a server
// without TLS waits for the rest of a command, and one with it hangs up.
func Hinted(client *redis.Client, err error) error {
	err = WithHint(err)
	if err == nil || IsServerError(err) {
		return err
	}
	switch with := client.Options().TLSConfig; {
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

const (
	// mostOfLine is what errors and tables show of a text, and mostOfServer of what a server says.
	mostOfLine   = 4 << 10
	mostOfServer = 512
)

// OneLine is a text without line breaks, and with nothing that controls a terminal, for errors and tables.
func OneLine(s string) string { return printable(strings.Join(strings.Fields(s), " "), mostOfLine) }

// ServerText is what a server says, for errors, logs and hooks: it may say anything, of any length.
func ServerText(s string) string { return printable(s, mostOfServer) }

// printable escapes what is not, and cuts a text off.
func printable(s string, most int) string {
	if len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf || !unicode.IsPrint(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if b.Len() >= most {
			return fmt.Sprintf("%s... (%d bytes)", b.String(), len(s))
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, "\\x%02x", s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// CleanError is an error of a server whose text is a ServerText.
func CleanError(err error) error {
	if err == nil || !IsServerError(err) {
		return err
	}
	if text := err.Error(); ServerText(text) != text {
		return ownText(ServerText(text))
	}
	return err
}
