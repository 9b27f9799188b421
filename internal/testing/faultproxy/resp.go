package faultproxy

import (
	"bytes"
	"errors"
	"math"
	"strings"
)

var errProtocol = errors.New("not RESP")

// maxLen bounds lengths that are believed, so that sums cannot overflow.
const maxLen = math.MaxInt32

// replyStart holds the types of RESP2 and RESP3.
const replyStart = "+-:_#,($=!*~>%|"

// requestStart holds the bytes that a request can begin with: an array, an inline
// command, an empty line.
const requestStart = "*\r\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// parseRequest finds the request at the beginning of b and appends its words,
// which alias b, to args. A size of 0 means that b holds only a part of it.
func parseRequest(b []byte, args [][]byte) (_ [][]byte, size int, err error) {
	if strings.IndexByte(requestStart, b[0]) < 0 {
		return args, 0, errProtocol // TLS, say: no line end may ever come
	}
	line, size := cutLine(b)
	if size == 0 {
		return args, 0, nil
	}
	if line == nil || line[0] != '*' { // an inline command, as typed into telnet
		return append(args, bytes.Fields(line)...), size, nil
	}
	count, err := parseLen(line[1:])
	if err != nil {
		return args, 0, err
	}
	for range max(0, count) {
		line, n := cutLine(b[size:])
		if n == 0 {
			return args, 0, nil
		}
		if line == nil || line[0] != '$' {
			return args, 0, errProtocol
		}
		length, err := parseLen(line[1:])
		if err != nil || length < 0 {
			return args, 0, errProtocol
		}
		size += n
		if len(b) < size+length+2 {
			return args, 0, nil
		}
		args = append(args, b[size:size+length])
		size += length + 2
	}
	return args, size, nil
}

// replyLen returns the length of the RESP2 or RESP3 reply at the beginning of b,
// 0 if b holds only a part of it.
func replyLen(b []byte) (int, error) {
	if len(b) > 0 && strings.IndexByte(replyStart, b[0]) < 0 {
		return 0, errProtocol
	}
	line, size := cutLine(b)
	if size == 0 {
		return 0, nil
	}
	parts := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return size, nil
	case '$', '=', '!':
		n, err := parseLen(line[1:])
		if err != nil || n < 0 {
			return size, err
		}
		if len(b) < size+n+2 {
			return 0, nil
		}
		return size + n + 2, nil
	case '*', '~', '>', '%', '|':
		n, err := parseLen(line[1:])
		if err != nil {
			return 0, err
		}
		switch line[0] {
		case '%':
			n *= 2
		case '|': // attributes, followed by the reply that they belong to
			n = 2*n + 1
		}
		parts = n
	}
	for range max(0, parts) {
		n, err := replyLen(b[size:])
		if n == 0 || err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}

// pushKind returns the first word of a push or of a RESP2 pubsub message, such
// as "message", and "" for an ordinary reply.
func pushKind(frame []byte, subscribed bool) string {
	push := frame[0] == '>'
	if !push && (frame[0] != '*' || !subscribed) {
		return ""
	}
	_, head := cutLine(frame)
	word, n := cutLine(frame[head:])
	if word != nil && word[0] == '$' {
		word, _ = cutLine(frame[head+n:])
	}
	kind := string(word)
	switch {
	case push && kind == "":
		return "push"
	case push, isSubscription(word), kind == "message", kind == "pmessage", kind == "smessage":
		return kind
	}
	return ""
}

// isSubscription reports whether a word names a command, or a confirmation, of
// which each channel gets its own.
func isSubscription(word []byte) bool {
	if len(word) < len("subscribe") { // nearly all commands
		return false
	}
	name := strings.ToLower(string(word))
	name = strings.TrimPrefix(name, "un")
	switch name {
	case "subscribe", "psubscribe", "ssubscribe", "punsubscribe", "sunsubscribe":
		return true
	}
	return false
}

// cutLine returns the line at the beginning of b and its length including CRLF,
// which is 0 if the line is not complete. An empty line is nil.
func cutLine(b []byte) (line []byte, size int) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, 0
	}
	line = bytes.TrimSuffix(b[:i], []byte{'\r'})
	if len(line) == 0 {
		return nil, i + 1
	}
	return line, i + 1
}

// parseLen parses a length; -1 stands for null.
func parseLen(b []byte) (int, error) {
	if string(b) == "-1" {
		return -1, nil
	}
	if len(b) == 0 {
		return 0, errProtocol
	}
	n := 0
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, errProtocol
		}
		if n = 10*n + int(d-'0'); n > maxLen {
			return 0, errProtocol
		}
	}
	return n, nil
}
