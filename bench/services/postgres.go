package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres starts one server with its defaults, but for more connections.
func Postgres(ctx context.Context) (*Cluster, error) {
	postgres, err := postgresProgram("postgres")
	if err != nil {
		return nil, err
	}
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.dir, err = os.MkdirTemp("", "redlock-postgres-"); err != nil {
		return nil, err
	}
	if as != nil {
		if err := os.Chown(c.dir, int(as.Uid), int(as.Gid)); err != nil {
			c.Close()
			return nil, err
		}
	}
	data := filepath.Join(c.dir, "data")
	create := exec.CommandContext(ctx, initdb, "-D", data, "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	create.Dir, create.SysProcAttr = c.dir, procAttr(as)
	if out, err := create.CombinedOutput(); err != nil {
		c.Close()
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	ports, err := freePorts(1)
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Addrs = []string{"postgres://bench@127.0.0.1:" + ports[0] + "/postgres?sslmode=disable"}
	c.servers = []*server{{start: func() *exec.Cmd {
		cmd := exec.Command(postgres, "-D", data, "-p", ports[0], "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "max_connections=400")
		cmd.Dir, cmd.SysProcAttr = c.dir, procAttr(as)
		return cmd
	}}}
	c.ready = func(ctx context.Context, addr string) error {
		conn, err := pgx.Connect(ctx, addr)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&c.Version); err != nil {
			return err
		}
		c.Version, _, _ = strings.Cut(c.Version, " ")
		return nil
	}
	if err := c.launch(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return c, nil
}

// postgresProgram also looks where Debian has them.
func postgresProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Errorf("%s: %w", name, ErrMissing)
	}
	return found[len(found)-1], nil
}

// unprivileged is the user to run as if we are root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uerr, gerr); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("postgres does not run as root, and there is no user postgres or nobody")
}
