package realredis

import (
	"fmt"
	"strconv"
	"strings"
)

// Option changes how a server is started.
type Option func(*config)

type config struct {
	directives []string
	env        []string
	password   string
	unixSocket bool
	tls        bool
	cluster    bool
	sentinel   bool
	master     *Server
}

func (c *config) add(name, value string) {
	if value == "" {
		value = `""`
	}
	c.directives = append(c.directives, name+" "+value)
}

// Args adds directives to the configuration file, given as name, value, name,
// value. A value goes into the file as it is, so it may hold several words
// ("save", "3600 1"); an empty one becomes "". Later directives override
// earlier ones and the defaults of this package.
func Args(kv ...string) Option {
	if len(kv)%2 != 0 {
		panic("realredis: Args needs pairs of name and value")
	}
	return func(c *config) {
		for i := 0; i < len(kv); i += 2 {
			c.add(kv[i], kv[i+1])
		}
	}
}

// Env adds KEY=VALUE entries to the environment of the server, for example
// LD_PRELOAD with a library which shifts its clock.
func Env(kv ...string) Option {
	return func(c *config) { c.env = append(c.env, kv...) }
}

// Password makes the server demand this password from the default user.
func Password(password string) Option {
	return func(c *config) {
		c.password = password
		c.add("requirepass", quote(password))
	}
}

// User adds an ACL user with this password and these rules, for example
// "~lock:*", "+set". Without rules the user may do nothing.
// [Server.Options] keeps on using the default user.
func User(name, password string, rules ...string) Option {
	return func(c *config) {
		// New users may use all channels before Redis 7, and none from then on.
		c.add("user", strings.Join(append([]string{name, "on", quote(">" + password), "resetchannels"}, rules...), " "))
	}
}

// AOF makes the server keep an append only file, so that keys survive a kill.
// The fsync policy is "always", "everysec" or "no". With "everysec" a server that is killed while its
// disk is slow may have answered what it had not written yet: as long as a sync takes, it puts off
// writing. With the others it writes before it answers. A file above a megabyte is written anew when it has
// doubled, so that a server whose keys have changed for an hour still starts at once.
func AOF(fsync string) Option {
	return func(c *config) {
		c.add("appendonly", "yes")
		c.add("appendfsync", fsync)
		c.add("auto-aof-rewrite-min-size", "1mb")
	}
}

// DBs sets the number of databases, which is 16 by default.
func DBs(n int) Option {
	return func(c *config) { c.add("databases", strconv.Itoa(n)) }
}

// UnixSocket makes the server listen on a Unix socket as well.
// [Server.Options] and [Server.URL] then lead to the socket,
// [Server.Addr] still is the TCP address.
func UnixSocket() Option {
	return func(c *config) { c.unixSocket = true }
}

// TLS makes the TCP port speak TLS only, with a certificate of the throw-away
// authority which all servers of this process share. See [Server.TLSConfig].
func TLS() Option {
	return func(c *config) { c.tls = true }
}

// Cluster starts a node in cluster mode. It owns no slots and knows no other
// node, so it answers CLUSTERDOWN until the caller assigns slots.
func Cluster() Option {
	return func(c *config) {
		c.cluster = true
		c.add("cluster-enabled", "yes")
	}
}

// ReplicaOf starts a replica of master. The replica counts as started when its
// link to the master is up, so the master must be running.
func ReplicaOf(master *Server) Option {
	return func(c *config) {
		c.master = master
		c.tls = c.tls || master.cfg.tls
		c.add("replicaof", strings.Replace(master.Addr(), ":", " ", 1))
		if master.cfg.password != "" {
			c.add("masterauth", quote(master.cfg.password))
		}
		if master.cfg.tls {
			c.add("tls-replication", "yes")
		}
	}
}

// quote writes s as a quoted word of the configuration file. strconv.Quote
// would not do: Redis reads \x escapes, but not \u.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch ch := s[i]; {
		case ch == '"' || ch == '\\':
			b.WriteByte('\\')
			b.WriteByte(ch)
		case ch < ' ' || ch > '~':
			fmt.Fprintf(&b, `\x%02x`, ch)
		default:
			b.WriteByte(ch)
		}
	}
	b.WriteByte('"')
	return b.String()
}
