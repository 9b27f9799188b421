package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd starts n members with their defaults.
func Etcd(ctx context.Context, n int) (*Cluster, error) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", ErrMissing)
	}
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.dir, err = os.MkdirTemp("", "redlock-etcd-"); err != nil {
		return nil, err
	}
	var members []string
	for i := range n {
		c.Addrs = append(c.Addrs, "http://127.0.0.1:"+ports[i])
		members = append(members, fmt.Sprintf("n%d=http://127.0.0.1:%s", i, ports[n+i]))
	}
	for i := range n {
		peer := "http://127.0.0.1:" + ports[n+i]
		c.servers = append(c.servers, &server{start: func() *exec.Cmd {
			cmd := exec.Command(program, "--name", fmt.Sprintf("n%d", i), "--data-dir", filepath.Join(c.dir, fmt.Sprint(i)),
				"--listen-client-urls", c.Addrs[i], "--advertise-client-urls", c.Addrs[i],
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
				"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new", "--log-level", "error")
			cmd.Dir, cmd.SysProcAttr = c.dir, procAttr(nil)
			return cmd
		}})
	}
	c.ready = func(ctx context.Context, addr string) error {
		status, err := etcdStatus(ctx, addr)
		if err != nil {
			return err
		}
		if c.Version = status.Version; status.Leader == 0 {
			return errors.New("no leader")
		}
		return nil
	}
	c.leader = func(ctx context.Context) (int, error) {
		for i, addr := range c.Addrs {
			if status, err := etcdStatus(ctx, addr); err == nil && status.Leader == status.Header.MemberId {
				return i, nil
			}
		}
		return 0, errors.New("etcd has no leader")
	}
	if err := c.launch(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return c, nil
}

func etcdStatus(ctx context.Context, addr string) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Status(ctx, addr)
}
