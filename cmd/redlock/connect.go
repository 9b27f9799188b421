package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// configEnv is what --config is when it is not given.
const configEnv = "REDLOCK_CONFIG"

// settings are what commands that talk to nodes share.
type settings struct {
	addrs  func() []string
	config *string
	tls    *tlsFiles
	cmd    *cobra.Command
}

// config is the file named by --config.
type config struct {
	Addrs     []string `json:"addrs"`
	KeyPrefix string   `json:"key_prefix"`
	TLS       tlsFiles `json:"tls"`

	tls *tls.Config // of TLS; nil if there is nothing in it
}

// tlsFiles are PEM files.
type tlsFiles struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// config is nil if no files are named. source says where each is named.
func (f tlsFiles) config(source map[string]string) (*tls.Config, error) {
	if f == (tlsFiles{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source["ca"], err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: %s has no certificate in it: must be a PEM file", source["ca"], f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("--tls-cert and --tls-key belong together: give both or none")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", source["cert"], source["key"], err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func connectFlags(cmd *cobra.Command) settings {
	s := settings{cmd: cmd}
	s.addrs = addrsFlag(cmd, "the nodes: host:port, or redis://, rediss:// or unix:// URLs, separated by commas")
	s.config = cmd.Flags().String("config", "", "a JSON `file` with \"addrs\", \"key_prefix\" and \"tls\" (default: $"+configEnv+")")
	s.tls = new(tlsFiles)
	cmd.Flags().StringVar(&s.tls.CA, "tls-ca", "", "trust servers with certificates of this authority, a PEM `file` (default: $REDLOCK_TLS_CA)")
	cmd.Flags().StringVar(&s.tls.Cert, "tls-cert", "", "show this certificate, a PEM `file` (default: $REDLOCK_TLS_CERT)")
	cmd.Flags().StringVar(&s.tls.Key, "tls-key", "", "its key, a PEM `file` (default: $REDLOCK_TLS_KEY)")
	return s
}

var errNoNodes = fmt.Errorf("no nodes: give --addrs, $%s or a --config file with \"addrs\"", addrsEnv)

// file reads the configuration. named: it was named on the command line, so it is worth more
// than the environment; one that the environment names is worth less than the rest of it.
func (s settings) file() (c config, named bool, err error) {
	source, path := "--config", *s.config
	named = s.cmd.Flags().Changed("config")
	if !named {
		source, path = "$"+configEnv, os.Getenv(configEnv)
	}
	if path == "" {
		return c, named, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return c, named, fmt.Errorf("%s: %w", source, err)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, named, fmt.Errorf("%s %s: %w", source, path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return c, named, fmt.Errorf("%s %s: there is more behind the end of the object", source, path)
	}
	for _, f := range []*string{&c.TLS.CA, &c.TLS.Cert, &c.TLS.Key} {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(filepath.Dir(path), *f)
		}
	}
	return c, named, nil
}

// chooseTLS takes each file of TLS from where it counts most.
func (s settings) chooseTLS(c *config, named bool) error {
	sources := make(map[string]string)
	for _, f := range []struct {
		what       string
		here, file *string
	}{{"ca", &s.tls.CA, &c.TLS.CA}, {"cert", &s.tls.Cert, &c.TLS.Cert}, {"key", &s.tls.Key, &c.TLS.Key}} {
		variable := "REDLOCK_TLS_" + strings.ToUpper(f.what)
		env := os.Getenv(variable)
		switch {
		case s.cmd.Flags().Changed("tls-" + f.what):
			sources[f.what] = "--tls-" + f.what
		case env != "" && (!named || *f.file == ""):
			*f.here, sources[f.what] = env, "$"+variable
		default:
			*f.here, sources[f.what] = *f.file, "\"tls\" of the file"
		}
	}
	var err error
	c.tls, err = s.tls.config(sources)
	return err
}

// nodes are the addresses, and what else the config file says.
func (s settings) nodes() ([]string, config, error) {
	c, named, err := s.file()
	if err != nil {
		return nil, c, err
	}
	if err := s.chooseTLS(&c, named); err != nil {
		return nil, c, err
	}
	addrs := s.addrs()
	if named && len(c.Addrs) > 0 && !s.cmd.Flags().Changed("addrs") {
		addrs = nil // they are from the environment
	}
	if s.cmd.Flags().Changed("addrs") {
		if i := withPassword(addrs); i >= 0 {
			return nil, c, fmt.Errorf("the %s address of --addrs has a password, which every user of this machine could read: "+
				"put it into $%s or the file of --config", ordinal(i+1), addrsEnv)
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

// withPassword is the first address that has one; -1: none has.
func withPassword(addrs []string) int {
	return slices.IndexFunc(addrs, func(a string) bool {
		u, err := url.Parse(a)
		if err != nil || u.User == nil {
			return false
		}
		_, secret := u.User.Password()
		return secret
	})
}

// open connects to the nodes, for locks of this TTL and owner.
func (s settings) open(ctx context.Context, ttl time.Duration, owner string) (*redlock.Redlock, error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return nil, &usageError{err}
	}
	return redlock.Open(ctx, addrs, &redlock.Options{TTL: ttl, KeyPrefix: c.KeyPrefix, Owner: owner, TLS: c.tls})
}

// ownName tells this process from all others.
func ownName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cut(host, 100) + ":" + strconv.Itoa(os.Getpid())
}

// operatorPatience is how long a node may take to answer an operator, who wants to see a
// slow node rather than be told that it is one.
const operatorPatience = time.Second

// operate is for commands that say what is known of the nodes, however many are down. No node is asked.
func (s settings) operate(o admin.Options) (*admin.Nodes, error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return nil, &usageError{err}
	}
	o.KeyPrefix, o.TLS, o.Timeout = c.KeyPrefix, c.tls, operatorPatience
	return admin.Open(addrs, &o)
}

// operateTwice is operate where an address is given twice, which [admin.Open] refuses: for check, whose
// business it is to say so, and what else there is. The clients are closed with the program.
func (s settings) operateTwice(o admin.Options) (*admin.Nodes, error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return nil, &usageError{err}
	}
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		of, err := optionsFor(addr, c.tls)
		if err != nil {
			return nil, &usageError{err}
		}
		of.MaxRetries, of.DialerRetries = -1, 1
		of.DisableIdentity = true
		of.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		clients = append(clients, redis.NewClient(of))
	}
	o.KeyPrefix, o.Timeout = c.KeyPrefix, operatorPatience
	return admin.New(clients, &o)
}

// optionsFor are those of a client of our own for an address that Open takes.
func optionsFor(addr string, secure *tls.Config) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	url := strings.Contains(addr, "://")
	if url {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			return nil, errors.New("an address is no URL of a node") // the error may show a password
		}
	}
	if secure != nil && (!url || o.TLSConfig != nil) {
		c := secure.Clone()
		if o.TLSConfig != nil {
			c.InsecureSkipVerify = o.TLSConfig.InsecureSkipVerify
		}
		if c.ServerName, _, _ = net.SplitHostPort(o.Addr); c.ServerName == "" {
			c.ServerName = o.Addr
		}
		o.TLSConfig = c
	}
	o.Protocol, o.ContextTimeoutEnabled = 2, true
	if o.DialTimeout == 0 {
		o.DialTimeout = operatorPatience
	}
	return o, nil
}

// oneKey takes the only argument, the key.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{fmt.Errorf("%s takes one key, not %d arguments", cmd.Name(), len(args))}
	}
	return nil
}
