package conn

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/quorumlock/redlock/internal/protocol"
)

// How our own connections begin: as those of the client would, but for HELLO, which RESP2 does not
// need. Code of go-redis and of the user runs here: the Dialer, providers of credentials, OnConnect.

// panicked is what is made of a panic of such code, which must cost the votes of one node and not the
// process. It wraps no error: one that code panics with was not said by the server.
type panicked struct {
	value any
	stack []byte
}

// Error is one line, without the stack.
func (p *panicked) Error() string {
	return "panic of go-redis, or of a function that the client was given: " + protocol.OneLine(fmt.Sprint(p.value))
}

// Stack is for users, who find it by errors.As.
func (p *panicked) Stack() []byte { return p.stack }

// noPanic is to be deferred.
func noPanic(err *error) {
	if v := recover(); v != nil {
		*err = &panicked{v, debug.Stack()}
	}
}

// NoPanic calls a function, and makes an error of its panic.
func NoPanic(f func()) (err error) {
	defer noPanic(&err)
	f()
	return nil
}

// mostCalls is how many calls of the user's code there are for a node that do not return: the next one
// waits for them.
const mostCalls = 8

// within is Within for the code of a node's user; its error is that of ctx where it is late.
func within[T any](ctx context.Context, q *quirks, call func() (T, error), unused func(T)) (got T, err error) {
	select {
	case q.calls <- true:
	case <-ctx.Done():
		return got, ctx.Err()
	}
	got, late, err := Within(ctx, func() (T, error) {
		defer func() { <-q.calls }()
		return call()
	}, unused)
	if late {
		err = ctx.Err()
	}
	return got, err
}

// Within calls code that may not look at its context, and returns when that ends at the latest: late. A panic
// is an error. What is returned later is given to unused, unless that is nil.
func Within[T any](ctx context.Context, call func() (T, error), unused func(T)) (got T, late bool, err error) {
	type result struct {
		got T
		err error
	}
	done := make(chan result)
	go func() {
		var r result
		func() {
			defer noPanic(&r.err)
			r.got, r.err = call()
		}()
		select {
		case done <- r:
		case <-ctx.Done():
			if r.err == nil && unused != nil { // or it may be a nil of a type
				unused(r.got)
			}
		}
	}()
	select {
	case r := <-done:
		return r.got, false, r.err
	case <-ctx.Done():
		return got, true, nil
	}
}

// account is what a connection logs in with.
type account struct{ user, password string }

// login knows the account of one connection. A streaming provider tells it of each new one, and the
// next batch begins with that.
type login struct {
	options *redis.Options
	news    atomic.Pointer[account]

	mu    sync.Mutex // guards what follows; it is not held while a provider is asked
	leave auth.UnsubscribeFunc
	over  bool
}

// OnNext is a streaming provider's.
func (l *login) OnNext(c auth.Credentials) {
	user, password := c.BasicAuth()
	l.news.Store(&account{user, password})
}

// OnError is a streaming provider's. What cannot be renewed the server says, too, if it matters.
func (l *login) OnError(error) {}

// now is the account that is to be used, in the order in which go-redis looks for one.
func (l *login) now(ctx context.Context) (a account, err error) {
	switch o := l.options; {
	case o.StreamingCredentialsProvider != nil:
		return l.subscribe(o.StreamingCredentialsProvider)
	case o.CredentialsProviderContext != nil:
		a.user, a.password, err = o.CredentialsProviderContext(ctx)
	case o.CredentialsProvider != nil:
		a.user, a.password = o.CredentialsProvider()
	default:
		a = account{o.Username, o.Password}
	}
	return a, err
}

func (l *login) subscribe(p auth.StreamingCredentialsProvider) (account, error) {
	l.forget() // what an earlier greeting of this connection subscribed to
	c, leave, err := p.Subscribe(l)
	if err != nil {
		return account{}, err
	}
	l.mu.Lock()
	over := l.over
	l.leave = leave
	l.mu.Unlock()
	if over {
		l.end()
		return account{}, net.ErrClosed
	}
	user, password := c.BasicAuth()
	return account{user, password}, nil
}

// end has the provider forget the connection, also one that subscribes at this moment.
func (l *login) end() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.forget()
}

func (l *login) forget() {
	l.mu.Lock()
	leave := l.leave
	l.leave = nil
	l.mu.Unlock()
	if leave != nil {
		var err error
		defer noPanic(&err)
		_ = leave()
	}
}

// words are those of AUTH; nil where there is no password.
func (a account) words() []string {
	switch {
	case a.password == "":
		return nil
	case a.user == "":
		return []string{"AUTH", a.password}
	default:
		return []string{"AUTH", a.user, a.password}
	}
}

// greet begins the conversation, and leaves the last words of that to be sent and their answers
// to be read with what is asked next: welcome tells what came of them.
func (f *ownFlow) greet() error {
	if f.greeted {
		return nil
	}
	o := f.login.options
	a, err := within(f.ctx, f.quirks, func() (account, error) { return f.login.now(f.ctx) }, nil)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	f.hello = hello{}
	if words := a.words(); words != nil {
		f.question(&f.hello.login, "AUTH", words...)
	}
	if o.DB > 0 {
		f.question(&f.hello.database, "SELECT", "SELECT", strconv.Itoa(o.DB))
	}
	switch q := f.quirks; {
	case o.ClientName != "":
		f.question(&f.hello.name, "CLIENT SETNAME", "CLIENT", "SETNAME", o.ClientName)
	case q.name != "" && !q.noName.Load():
		f.question(&f.hello.called, "CLIENT SETNAME", "CLIENT", "SETNAME", q.name)
	}
	//lint:ignore SA1019 users may have set the option by its former name
	if !f.quirks.shy && !o.DisableIdentity && !o.DisableIndentity {
		f.question(new(answer), "CLIENT SETINFO LIB-NAME", "CLIENT", "SETINFO", "LIB-NAME", "go-redis("+o.IdentitySuffix+","+strings.ReplaceAll(runtime.Version(), " ", "-")+")")
		f.question(new(answer), "CLIENT SETINFO LIB-VER", "CLIENT", "SETINFO", "LIB-VER", redis.Version())
	}
	if o.OnConnect == nil {
		return nil
	}
	f.hear()
	if err := f.welcome(); err != nil {
		return err
	}
	return f.onConnect()
}

// hello is what a server says to the words of a greeting that matter, and to a name of ours, which does
// not, but each denial is an entry in the server's log.
type hello struct{ login, database, name, called answer }

// greetingRoom is for the answers to all that is asked of a server about itself. INFO replication lists
// replicas.
const greetingRoom = 512 << 10

// welcome is what came of the greeting, whose answers were heard. Of the server's own errors the first
// counts; the others may come from that one.
func (f *ownFlow) welcome() error {
	for _, w := range []struct {
		failure string
		err     error
	}{
		{"failed to authenticate", protocol.OnlyCode(f.hello.login.err)},
		{"failed to select a database", f.hello.database.err},
		{"failed to set the client's name", f.hello.name.err},
	} {
		if protocol.IsServerError(w.err) {
			return fmt.Errorf("%s: %w", w.failure, w.err)
		}
	}
	if protocol.Denied(f.hello.called.err) {
		f.quirks.noName.Store(true)
	}
	f.greeted = f.in.broken == nil
	return f.in.broken
}

// onConnect has the user's function ask what it likes to, over go-redis.
func (f *ownFlow) onConnect() error {
	lent := newScanner(lent{f.socket}, mostAnswers)
	client := redis.NewClient(&redis.Options{
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if lent.broken != nil {
				f.Close()
			}
			return lent, nil
		},
		Addr: f.login.options.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1,
		ReadTimeout: -2, WriteTimeout: -2, // a timer closes the socket
		MaintNotificationsConfig: noNotifications(),
	})
	defer client.Close()
	f.greeted = false
	if _, err := within(f.ctx, f.quirks, func() (any, error) { return nil, f.login.options.OnConnect(f.ctx, client.Conn()) }, nil); err != nil {
		return err
	}
	f.greeted = true
	return lent.broken
}

// lent is a socket that its user does not close.
type lent struct{ *socket }

func (lent) Close() error { return nil }
