package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Where Debian has it. Its manifest names the libraries that it needs.
const zooKeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper starts n servers with the settings of its guide.
func ZooKeeper(ctx context.Context, n int) (*Cluster, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, fmt.Errorf("java: %w", ErrMissing)
	}
	if _, err := os.Stat(zooKeeperJar); err != nil {
		return nil, fmt.Errorf("zookeeper: %w", ErrMissing)
	}
	ports, err := freePorts(3 * n)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.dir, err = os.MkdirTemp("", "redlock-zookeeper-"); err != nil {
		return nil, err
	}
	var members strings.Builder
	for i := range n {
		c.Addrs = append(c.Addrs, "127.0.0.1:"+ports[i])
		fmt.Fprintf(&members, "server.%d=127.0.0.1:%s:%s\n", i+1, ports[n+2*i], ports[n+2*i+1])
	}
	for i := range n {
		dir := filepath.Join(c.dir, fmt.Sprint(i))
		file := filepath.Join(dir, "zoo.cfg")
		settings := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n"+
			"4lw.commands.whitelist=srvr\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%s\n%s", dir, ports[i], members.String())
		err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "myid"), []byte(fmt.Sprint(i+1)), 0o644),
			os.WriteFile(file, []byte(settings), 0o644))
		if err != nil {
			c.Close()
			return nil, err
		}
		c.servers = append(c.servers, &server{start: func() *exec.Cmd {
			cmd := exec.Command(java, "-Xmx256m", "-cp", zooKeeperJar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
			cmd.Dir, cmd.SysProcAttr = dir, procAttr(nil)
			return cmd
		}})
	}
	c.ready = func(ctx context.Context, addr string) error {
		state, err := zooKeeperState(ctx, addr)
		if err != nil {
			return err
		}
		if !strings.Contains(state, "Mode: ") {
			return errors.New(strings.TrimSpace(state))
		}
		version, _, _ := strings.Cut(strings.TrimPrefix(state, "Zookeeper version: "), "-")
		c.Version = version
		return nil
	}
	c.leader = func(ctx context.Context) (int, error) {
		for i, addr := range c.Addrs {
			if state, err := zooKeeperState(ctx, addr); err == nil && strings.Contains(state, "Mode: leader") {
				return i, nil
			}
		}
		return 0, errors.New("zookeeper has no leader")
	}
	if err := c.launch(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return c, nil
}

// zooKeeperState is what a server answers to "srvr".
func zooKeeperState(ctx context.Context, addr string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
