package conn

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Our own connections speak RESP2 that is written and read here: requests as arrays of bulk strings,
// and of replies what Redis gives to such. One goroutine at a time uses a connection.
//
// One reason is that of a reply nothing is taken into memory before it has come, and no more than what was asked
// for can be: one of the nodes may be broken, or another's. The other is cost. A batch of 57 requests takes 4.6
// us and no allocation here, and took 13.2 us and 32 allocations as a pipeline of go-redis with all that can be
// used again; one request 0.1 and 0.5 us (BenchmarkBatch, against in-memory connections). Of a cycle on five
// servers that is 10 to 20 % of the client's CPU at 128 goroutines.

// respWriter makes the bytes of commands. It implements protocol.Words.
type respWriter struct {
	bytes []byte
	words int // of the last command
}

// request appends a request as a command. Native: as in protocol.Request.Write.
func (w *respWriter) request(r *protocol.Request, may protocol.NativeDelete) (native bool) {
	at := w.begin()
	native = r.Write(w, may)
	w.end(at)
	return native
}

// ask appends a command of words.
func (w *respWriter) ask(words ...string) {
	at := w.begin()
	for _, s := range words {
		w.Str(s)
	}
	w.end(at)
}

// begin leaves room for the number of words, of which there are fewer than ten as a rule.
func (w *respWriter) begin() (at int) {
	w.bytes, w.words = append(w.bytes, "*0\r\n"...), 0
	return len(w.bytes) - len("0\r\n")
}

func (w *respWriter) end(at int) {
	if w.words < 10 {
		w.bytes[at] = '0' + byte(w.words)
		return
	}
	var digits [20]byte
	w.bytes = slices.Replace(w.bytes, at, at+1, strconv.AppendInt(digits[:0], int64(w.words), 10)...)
}

// Str is the next word.
func (w *respWriter) Str(s string) {
	w.words++
	w.bytes = appendBulk(w.bytes, s)
}

// Join is the next word, of three parts.
func (w *respWriter) Join(a, b, c string) {
	var room [64]byte
	w.words++
	w.bytes = appendBulk(w.bytes, append(append(append(room[:0], a...), b...), c...))
}

// Num is the next word, of digits.
func (w *respWriter) Num(n int64) {
	var digits [20]byte
	w.words++
	w.bytes = appendBulk(w.bytes, strconv.AppendInt(digits[:0], n, 10))
}

func appendBulk[T string | []byte](to []byte, word T) []byte {
	to = append(to, '$')
	to = strconv.AppendInt(to, int64(len(word)), 10)
	to = append(to, '\r', '\n')
	to = append(to, word...)
	return append(to, '\r', '\n')
}

// respReader reads replies. Once something came that is no reply, or nothing will come any
// more, that is its error for good: what is read next belongs to no request that is known.
//
// It makes of bytes what go-redis makes of them (FuzzReplies), or else breaks: by a type of RESP3,
// which was not agreed on, an end of a string that is no CRLF, and a line or a depth of lists that
// no reply to a request of ours comes near.
type respReader struct {
	from   *bufio.Reader
	left   int // so much what comes until the next allow may take
	broken error
}

func newRespReader(from io.Reader) respReader {
	return respReader{from: bufio.NewReaderSize(from, longestLine)}
}

// allow bounds what the answers to what is asked now may take, all together: their bytes, and
// perElement for each and for each element of a list.
func (r *respReader) allow(room int) { r.left = room }

const (
	// longestLine is of an error text that has a key in it, and more.
	longestLine = 16 << 10
	// deepestReply is more lists in each other than a script of ours returns.
	deepestReply = 8
)

var (
	errNoRESP  = errors.New("not the protocol of Redis (RESP2)")
	errTooMuch = errors.New("the server announced or sent more than any answer to what it was asked")
	errUnasked = errors.New("the server sent more than it was asked for, so which answer is whose is not known")
)

// reply reads the next reply; nil is a null. The error is the server's answer (redis.Error), or
// why the reader is broken.
func (r *respReader) reply() (any, error) { return r.replyAt(0) }

func (r *respReader) replyAt(depth int) (any, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	switch line[0] {
	case '+':
		if string(line) == "+OK" {
			return okReply, nil
		}
		return string(line[1:]), nil
	case '-':
		return nil, serverError(line)
	case ':':
		n, err := strconv.ParseInt(string(line[1:]), 10, 64)
		if err != nil {
			return nil, r.noRESP(line)
		}
		return n, nil
	case '$':
		text, present, err := r.bulk(line)
		if !present {
			return nil, err
		}
		return string(text), nil
	case '*':
		return r.list(line, depth+1)
	default:
		return nil, r.noRESP(line)
	}
}

// Boxed once.
var (
	okReply   any = "OK"
	noReplies any = []any{}
)

// text reads the next reply where it is a string or a null, and copies nothing: the text is good
// until the next read.
func (r *respReader) text() (text []byte, present bool, err error) {
	line, err := r.line()
	switch {
	case err != nil:
		return nil, false, err
	case line[0] == '-':
		return nil, false, serverError(line)
	case line[0] == '$':
		return r.bulk(line)
	default:
		return nil, false, r.noRESP(line)
	}
}

// message reads what comes over a subscription: its kind, and what it says.
func (r *respReader) message() (kind, text string, err error) {
	val, err := r.reply()
	if err != nil {
		return "", "", err
	}
	parts, _ := val.([]any)
	if len(parts) == 0 {
		return "", "", r.noRESP([]byte(fmt.Sprint(val)))
	}
	kind, _ = parts[0].(string)
	text, _ = parts[len(parts)-1].(string)
	return kind, text, nil
}

// checkUnasked breaks the reader if something has come that belongs to no request.
func (r *respReader) checkUnasked() error {
	if r.broken == nil && r.from.Buffered() > 0 {
		r.broken = errUnasked
	}
	return r.broken
}

// misplaced breaks the reader since a reply stands where another one belongs.
func (r *respReader) misplaced() {
	if r.broken == nil {
		r.broken = errUnasked
	}
}

func (r *respReader) line() ([]byte, error) {
	if r.broken != nil {
		return nil, r.broken
	}
	line, err := r.from.ReadSlice('\n')
	switch {
	case err != nil && !errors.Is(err, bufio.ErrBufferFull):
		return nil, r.fail(err)
	case err != nil, len(line) < len("+\r\n"), line[len(line)-2] != '\r':
		return nil, r.noRESP(line)
	}
	if r.left -= perElement + len(line); r.left < 0 {
		return nil, r.tooMuch(line)
	}
	return line[:len(line)-2], nil
}

// bulk reads the string that a line announces. It is good until the next read.
func (r *respReader) bulk(line []byte) (text []byte, present bool, err error) {
	n, err := r.length(line)
	if n < 0 || err != nil {
		return nil, false, err
	}
	if r.left -= n; r.left < 0 {
		return nil, false, r.tooMuch(line)
	}
	all := n + len("\r\n")
	if all <= r.from.Size() {
		if text, err = r.from.Peek(all); err == nil {
			_, err = r.from.Discard(all)
		}
	} else {
		// It takes the memory that has come, and not what was announced.
		var b bytes.Buffer
		_, err = io.CopyN(&b, r.from, int64(all))
		text = b.Bytes()
	}
	if err != nil {
		return nil, false, r.fail(err)
	}
	if !bytes.HasSuffix(text, []byte("\r\n")) {
		return nil, false, r.noRESP(text)
	}
	return text[:n], true, nil
}

// list reads the replies that a line announces. Among them an error is a value: a script returns it
// for a command of its own.
func (r *respReader) list(line []byte, depth int) (any, error) {
	n, err := r.length(line)
	if n < 0 || err != nil {
		return nil, err
	}
	if depth > deepestReply {
		return nil, r.noRESP(line)
	}
	if n > r.left/perElement {
		return nil, r.tooMuch(line)
	}
	if n == 0 {
		return noReplies, nil
	}
	all := make([]any, 0, min(n, 64))
	for range n {
		v, err := r.replyAt(depth)
		if r.broken != nil {
			return nil, r.broken
		}
		if err != nil {
			v = err
		}
		all = append(all, v)
	}
	return all, nil
}

// length is the number in a line, -1 for a null.
func (r *respReader) length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < -1 {
		return 0, r.noRESP(line)
	}
	return n, nil
}

func (r *respReader) noRESP(what []byte) error {
	return r.fail(fmt.Errorf("%w: %.100q", errNoRESP, what))
}

func (r *respReader) tooMuch(what []byte) error {
	return r.fail(fmt.Errorf("%w: %.100q", errTooMuch, what))
}

func (r *respReader) fail(err error) error {
	r.broken = err
	return err
}

// serverError is an error reply, as a go-redis error: what redis.IsLoadingError and its like, and
// errors.Is with redis.ErrNoScript, look for.
func serverError(line []byte) error { return likeNil(redis.Nil, protocol.ServerText(string(line[1:]))) }

// likeNil makes an error of the type of redis.Nil, which has no name outside of go-redis.
func likeNil[E interface {
	~string
	error
}](_ E, text string) error {
	return E(text)
}
