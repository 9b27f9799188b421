package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
)

// configEnv is what --config is when it is not given.
const configEnv = "REDLOCK_CONFIG"

// settings are what commands that talk to nodes share.
type settings struct {
	addrs  func() []string
	config *string
	cmd    *cobra.Command
}

// config is the file named by --config.
type config struct {
	Addrs     []string `json:"addrs"`
	KeyPrefix string   `json:"key_prefix"`
}

func connectFlags(cmd *cobra.Command) settings {
	s := settings{cmd: cmd}
	s.addrs = addrsFlag(cmd, "the nodes: host:port, or redis://, rediss:// or unix:// URLs, separated by commas")
	s.config = cmd.Flags().String("config", os.Getenv(configEnv), "a JSON `file` with \"addrs\" and \"key_prefix\" (default: $"+configEnv+")")
	return s
}

var errNoNodes = fmt.Errorf("no nodes: give --addrs, $%s or a --config file with \"addrs\"", addrsEnv)

// nodes are the addresses, and what else the config file says.
func (s settings) nodes() ([]string, config, error) {
	var c config
	if *s.config != "" {
		text, err := os.ReadFile(*s.config)
		if err != nil {
			return nil, c, fmt.Errorf("--config: %w", err)
		}
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			return nil, c, fmt.Errorf("--config %s: %w", *s.config, err)
		}
	}
	addrs := s.addrs()
	if s.cmd.Flags().Changed("addrs") {
		for i, a := range addrs {
			if u, err := url.Parse(a); err == nil && u.User != nil {
				if _, secret := u.User.Password(); secret {
					return nil, c, fmt.Errorf("address %d of --addrs has a password, which every user of this machine could read: "+
						"put it into $%s or the file of --config", i, addrsEnv)
				}
			}
		}
	}
	if len(addrs) == 0 {
		addrs = cleanAddrs(c.Addrs)
	}
	if len(addrs) == 0 {
		return nil, c, errNoNodes
	}
	return addrs, c, nil
}

// open connects to the nodes, for locks of this TTL.
func (s settings) open(ctx context.Context, ttl time.Duration) (*redlock.Redlock, error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return nil, &usageError{err}
	}
	return openNodes(ctx, addrs, &redlock.Options{TTL: ttl, KeyPrefix: c.KeyPrefix, Owner: ownName()})
}

// ownName is whom others see as the owner. It is the library's default, and here to be found
// in the line.
func ownName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cut(host, 200) + ":" + strconv.Itoa(os.Getpid())
}

func openNodes(ctx context.Context, addrs []string, o *redlock.Options) (*redlock.Redlock, error) {
	return redlock.Open(ctx, addrs, o)
}

// operatorPatience is how long a node may take to answer an operator, who wants to see a
// slow node rather than be told that it is one.
const operatorPatience = time.Second

// operate connects for commands that say what is known of the nodes, however many are down.
// Open takes no set without a majority, but has looked at the addresses before it says so;
// New asks no node for anything.
func (s settings) operate(ctx context.Context, o redlock.Options) (rl *redlock.Redlock, disconnect func(), err error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return nil, nil, &usageError{err}
	}
	o.KeyPrefix = c.KeyPrefix
	rl, err = openNodes(ctx, addrs, &o)
	if err == nil {
		return rl, func() { _ = rl.Close() }, nil
	}
	if !errors.Is(err, redlock.ErrNoQuorum) || ctx.Err() != nil {
		return nil, nil, err
	}
	var clients []redis.UniversalClient
	disconnect = func() {
		if rl != nil {
			_ = rl.Close()
		}
		for _, c := range clients {
			_ = c.Close()
		}
	}
	for _, addr := range addrs {
		co, err := optionsFor(addr)
		if err != nil {
			disconnect()
			return nil, nil, &usageError{err}
		}
		// A node that is down shall say so at once.
		co.MaxRetries, co.DialerRetries = -1, 1
		if co.DialTimeout == 0 {
			co.DialTimeout = operatorPatience
		}
		co.DisableIdentity = true
		co.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		clients = append(clients, redis.NewClient(co))
	}
	if rl, err = redlock.New(clients, &o); err != nil {
		disconnect()
		return nil, nil, err
	}
	return rl, disconnect, nil
}

// optionsFor are those of a client of our own for an address that Open takes.
func optionsFor(addr string) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			return nil, errors.New("an address is no URL of a node") // the error may show a password
		}
	}
	o.Protocol, o.ContextTimeoutEnabled = 2, true
	return o, nil
}

// oneKey takes the only argument, the key.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{fmt.Errorf("%s takes one key, not %d arguments", cmd.CommandPath(), len(args))}
	}
	return nil
}
