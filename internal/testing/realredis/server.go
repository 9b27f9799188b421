package realredis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorumlock/redlock/internal/testing/port"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	loopback = "127.0.0.1"

	// startLimit is far beyond what a start takes, for busy machines.
	startLimit = 30 * time.Second
	// shutdownLimit exceeds the 10 seconds for which Redis waits for its
	// replicas.
	shutdownLimit = 15 * time.Second

	// BinaryEnv names the environment variable which overrides the server
	// binary: a path, or a name to be looked up like redis-server.
	BinaryEnv = "REDLOCK_REDIS_SERVER"
)

// Server is a server process, together with the port and the directory which
// it keeps over restarts. Its methods may be used concurrently.
type Server struct {
	cfg         config
	bin         string
	dir         string
	port        int
	reservation io.Closer
	identity    *identity // nil without TLS

	op     sync.Mutex // one Restart or Close at a time
	closed bool
	proc   atomic.Pointer[process]
	runID  atomic.Pointer[string]
}

// Binary returns the path of the server binary.
func Binary() (string, error) {
	name := os.Getenv(BinaryEnv)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path) // servers run in a directory of their own
}

// Launch starts a server and returns when it answers. The context limits the
// start only; the server runs until [Server.Close].
func Launch(ctx context.Context, opts ...Option) (*Server, error) {
	bin, err := Binary()
	if err != nil {
		return nil, fmt.Errorf("realredis: %w", err)
	}
	s := &Server{bin: bin}
	for _, opt := range opts {
		opt(&s.cfg)
	}
	if s.cfg.tls {
		if s.identity, err = theIdentity(); err != nil {
			return nil, fmt.Errorf("realredis: %w", err)
		}
	}
	// A socket path must be short, which rules out directories named after a
	// test.
	if s.dir, err = os.MkdirTemp("", "realredis-"); err != nil {
		return nil, fmt.Errorf("realredis: %w", err)
	}
	if err = s.firstStart(ctx); err == nil && s.cfg.master != nil {
		err = s.await(ctx, s.proc.Load(), replicaReady)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// LaunchN starts n servers in parallel: all of them or none.
func LaunchN(ctx context.Context, n int, opts ...Option) ([]*Server, error) {
	servers, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { servers[i], errs[i] = Launch(ctx, opts...) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, s := range servers {
			if s != nil {
				s.Close()
			}
		}
		return nil, err
	}
	return servers, nil
}

var errPortTaken = errors.New("port is taken")

// firstStart starts the server on a free port. Between the choice of the port
// and the start a stranger may take it, hence the attempts.
func (s *Server) firstStart(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		var err error
		if s.port, s.reservation, err = port.Reserve(); err != nil {
			return fmt.Errorf("realredis: %w", err)
		}
		if err = s.writeConfig(); err != nil {
			return fmt.Errorf("realredis: %w", err)
		}
		if err = s.start(ctx); !errors.Is(err, errPortTaken) || attempt == 20 {
			return err
		}
		_ = s.reservation.Close()
	}
}

// writeConfig writes the configuration once for the lifetime of the server:
// Redis and Sentinel write what they learn at run time into the same file, and
// a restart has to find it.
func (s *Server) writeConfig() error {
	var c config
	c.add("bind", loopback)
	c.add("dir", quote(s.dir))
	if s.cfg.tls {
		c.add("port", "0")
		c.add("tls-port", strconv.Itoa(s.port))
		files, err := s.identity.write(s.dir)
		if err != nil {
			return err
		}
		c.directives = append(c.directives, files...)
		if s.cfg.cluster {
			c.add("tls-cluster", "yes")
		}
	} else {
		c.add("port", strconv.Itoa(s.port))
	}
	if s.cfg.unixSocket {
		c.add("unixsocket", quote(s.SocketPath()))
		c.add("unixsocketperm", "700")
	}
	if !s.cfg.sentinel {
		c.add("save", "")
		c.add("repl-diskless-sync-delay", "0") // else replicas wait 5 s
	}
	c.directives = append(c.directives, s.cfg.directives...)
	return os.WriteFile(s.path("redis.conf"), []byte(strings.Join(c.directives, "\n")+"\n"), 0o600)
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// start runs the server and waits until it answers.
func (s *Server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.path("redis.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("realredis: %w", err)
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return fmt.Errorf("realredis: %w", err)
	}

	cmd := exec.Command(s.bin, s.path("redis.conf"))
	if s.cfg.sentinel {
		cmd.Args = append(cmd.Args, "--sentinel")
	}
	cmd.Env = append(os.Environ(), s.cfg.env...)
	cmd.Dir = s.dir
	// A file, and not a pipe, needs no goroutine to drain it and does not
	// block a server whose parent is slow.
	cmd.Stdout, cmd.Stderr = log, log

	p, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("realredis: %w", err)
	}
	s.proc.Store(p)

	if err = s.await(ctx, p, s.answers); err != nil {
		p.kill()
		if text, _ := os.ReadFile(log.Name()); int64(len(text)) > before.Size() &&
			bytes.Contains(text[before.Size():], []byte("Address already in use")) {
			return fmt.Errorf("realredis: %s: %w", s.Addr(), errPortTaken)
		}
		return err
	}
	return nil
}

// await polls until check succeeds.
func (s *Server) await(ctx context.Context, p *process, check func(context.Context, *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := s.ask(ctx, check)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("realredis: %s ended: %v\n%s", s.Addr(), p.state, s.Log())
		case <-ctx.Done():
			return fmt.Errorf("realredis: %s: %w: %w\n%s", s.Addr(), ctx.Err(), err, s.Log())
		case <-time.After(time.Millisecond):
		}
	}
}

// ask dials and runs check on that one connection. A client of go-redis that
// dials itself would log each refusal, and after some of them would leave
// further attempts to a goroutine which outlives its Close.
func (s *Server) ask(ctx context.Context, check func(context.Context, *redis.Client) error) error {
	o := s.Options()
	if o.Network == "" {
		o.Network = "tcp"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var conn net.Conn
	var err error
	if o.TLSConfig != nil {
		conn, err = (&tls.Dialer{Config: o.TLSConfig}).DialContext(ctx, o.Network, o.Addr)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, o.Network, o.Addr)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	o.PoolSize = 1
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	c := redis.NewClient(o)
	defer c.Close()
	return check(ctx, c)
}

// answers succeeds if this very server is up and has loaded its data. Somebody
// else may be listening on the port, with ours about to give up.
func (s *Server) answers(ctx context.Context, c *redis.Client) error {
	if err := c.Ping(ctx).Err(); err != nil {
		if redis.IsAuthError(err) || redis.IsPermissionError(err) {
			return nil // the caller has locked out the default user
		}
		return err
	}
	info, err := c.Info(ctx, "server").Result()
	if redis.IsPermissionError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pid := infoField(info, "process_id"); pid != strconv.Itoa(s.PID()) {
		return fmt.Errorf("process %s answers on the port of process %d", pid, s.PID())
	}
	id := infoField(info, "run_id")
	s.runID.Store(&id)
	return nil
}

func replicaReady(ctx context.Context, c *redis.Client) error {
	info, err := c.Info(ctx, "replication").Result()
	if err == nil && infoField(info, "master_link_status") != "up" {
		err = errors.New("link to the master is not up")
	}
	return err
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Addr returns the TCP address, host:port. It stays the same over restarts.
func (s *Server) Addr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.port)) }

// SocketPath returns the path of the Unix socket, empty without [UnixSocket].
func (s *Server) SocketPath() string {
	if !s.cfg.unixSocket {
		return ""
	}
	return s.path("redis.sock")
}

// URL returns the address with credentials in the form that redis.ParseURL
// reads. With [TLS] the client needs [Server.TLSConfig] in addition.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr(), Path: "/0"}
	switch {
	case s.cfg.unixSocket:
		u = url.URL{Scheme: "unix", Path: s.SocketPath()}
	case s.cfg.tls:
		u.Scheme = "rediss"
	}
	if s.cfg.password != "" {
		u.User = url.UserPassword("", s.cfg.password)
	}
	return u.String()
}

// TLSConfig returns a client configuration which trusts the server and shows
// it a certificate that it accepts. It is nil without [TLS].
func (s *Server) TLSConfig() *tls.Config {
	if s.identity == nil {
		return nil
	}
	return s.identity.config.Clone()
}

// Options returns fresh options with which go-redis reaches the server as the
// default user. Maintenance notifications are off, since a server on its own
// does not send any; all else has the defaults of go-redis.
func (s *Server) Options() *redis.Options {
	o := &redis.Options{
		Addr:                     s.Addr(),
		Password:                 s.cfg.password,
		TLSConfig:                s.TLSConfig(),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if s.cfg.unixSocket {
		o.Network, o.Addr, o.TLSConfig = "unix", s.SocketPath(), nil
	}
	return o
}

// PID returns the process id of the current or, if it is not alive, of the
// last run.
func (s *Server) PID() int { return s.proc.Load().Pid }

// Alive reports whether the process exists. A paused one does.
func (s *Server) Alive() bool { return s.proc.Load().alive() }

// RunID returns the run_id of the latest successful start, which differs for
// each. It is empty if the default user may not call INFO.
func (s *Server) RunID() string {
	if id := s.runID.Load(); id != nil {
		return *id
	}
	return ""
}

// CPU returns the processor time which the current run has consumed so far, in
// user and in system mode, over all its threads. A new run starts at zero.
func (s *Server) CPU() (time.Duration, error) { return s.proc.Load().cpu() }

// Pause stops the process (SIGSTOP). The kernel still accepts connections and
// data for it, but when Pause has returned no command is executed any more.
func (s *Server) Pause() error {
	p := s.proc.Load()
	if err := p.Signal(sigStop); err != nil {
		return fmt.Errorf("realredis: pause %s: %w", s.Addr(), err)
	}
	if err := awaitStop(p); err != nil {
		return fmt.Errorf("realredis: pause %s: %w", s.Addr(), err)
	}
	return nil
}

// Resume lets a paused process go on (SIGCONT).
func (s *Server) Resume() error {
	if err := s.proc.Load().Signal(sigCont); err != nil {
		return fmt.Errorf("realredis: resume %s: %w", s.Addr(), err)
	}
	return nil
}

// Kill ends the process at once (SIGKILL), paused or not, and waits until it
// is gone. It does nothing to a server which is not alive.
func (s *Server) Kill() { s.proc.Load().kill() }

// Shutdown asks the process to end (SIGTERM) and waits until it has. A paused
// one is resumed first. It is no error if the server is not alive.
func (s *Server) Shutdown() error {
	p := s.proc.Load()
	for _, sig := range []os.Signal{syscall.SIGTERM, sigCont} {
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("realredis: shut down %s: %w", s.Addr(), err)
		}
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(shutdownLimit):
		return fmt.Errorf("realredis: %s does not shut down\n%s", s.Addr(), s.Log())
	}
}

// Restart starts the server again on the same port and directory, after
// killing it if it is alive, and returns when it answers. The keys are those
// that were on disk: none without [AOF].
func (s *Server) Restart() error {
	s.op.Lock()
	defer s.op.Unlock()
	if s.closed {
		return fmt.Errorf("realredis: restart %s: %w", s.Addr(), os.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s.Kill()
	for {
		err := s.start(ctx)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Log returns the end of the server's log, for messages about failures.
func (s *Server) Log() string {
	const tail = 4 << 10
	b, err := os.ReadFile(s.path("redis.log"))
	if err != nil {
		return err.Error()
	}
	if len(b) > tail {
		b = b[len(b)-tail:]
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return string(b)
}

// Close kills the server and removes its directory. The Server remains closed.
func (s *Server) Close() error {
	s.op.Lock()
	defer s.op.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if p := s.proc.Load(); p != nil {
		p.kill()
	}
	if s.reservation != nil {
		_ = s.reservation.Close()
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("realredis: %w", err)
	}
	return nil
}
