package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
)

// page is where a page is served, if it is.
type page struct {
	cmd    *cobra.Command
	listen string
}

const webFlagName = "web"

// webFlag adds --web to the command.
func webFlag(cmd *cobra.Command) *page {
	p := &page{cmd: cmd}
	f := cmd.Flags()
	f.StringVar(&p.listen, webFlagName, "", "a page for browsers on this machine, with an address that nobody can guess; "+
		"--web=`host:port` serves it there instead")
	f.Lookup(webFlagName).NoOptDefVal = web.Loopback
	return p
}

func (p *page) asked() bool { return p.cmd.Flags().Changed(webFlagName) }

// check reports an address that is none, and flags that mean nothing on a page.
func (p *page) check(useless ...string) error {
	if _, _, err := net.SplitHostPort(p.listen); err != nil {
		return &usageError{fmt.Errorf("--web is %q: must be host:port, such as 127.0.0.1:8080", p.listen)}
	}
	for _, name := range useless {
		if p.cmd.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s and --web do not go together: a page goes on until Ctrl-C, and looks like a page", name)}
		}
	}
	return nil
}

// misplaced reports an address that stands behind --web without a =, so that it is an argument.
// sure: no argument can be anything else.
func (p *page) misplaced(args []string, sure bool) error {
	if !p.asked() || p.listen != web.Loopback {
		return nil
	}
	if dash := p.cmd.ArgsLenAtDash(); dash >= 0 {
		args = args[:dash]
	}
	for _, a := range args {
		host, port, err := net.SplitHostPort(a)
		if _, number := strconv.ParseUint(port, 10, 16); err != nil || number != nil {
			continue
		}
		if sure || host == "" || host == "localhost" || net.ParseIP(host) != nil {
			return &usageError{fmt.Errorf("%q is no part of --web: an address needs a =, --web=%s", a, a)}
		}
	}
	return nil
}

// ready tells the user where to look.
func (p *page) ready(s *web.Server) {
	out := p.cmd.OutOrStdout()
	fmt.Fprintf(out, "Open in a browser:\n\n  %s\n\n", s.URL())
	if s.Loopback() {
		fmt.Fprint(out, "Only this machine can reach it. Ctrl-C ends it.\n")
	} else {
		fmt.Fprint(out, "Other machines can reach it, under the address that they know this one by. Whoever has all\n"+
			"of that URL can look, and nothing is encrypted. Ctrl-C ends it.\n")
	}
}

// webTTL is the lease on the page unless another is given: long enough to be watched.
const webTTL = 4 * time.Second

// webDemo is the demo with --web.
func webDemo(cmd *cobra.Command, c demoConfig, p *page) error {
	if err := p.check("duration", "json", "plain", "no-color"); err != nil {
		return err
	}
	if cmd.Flags().Changed("addrs") && len(c.addrs) > 0 {
		return &usageError{errors.New("--addrs and --web do not go together: the page breaks nodes, so it has nodes of its own; " +
			"'redlock watch --web' shows yours")}
	}
	if !cmd.Flags().Changed("ttl") {
		c.ttl = webTTL
	}
	if err := c.check(); err != nil {
		return &usageError{err}
	}
	s, err := newStage(c.workers, c.ttl, watchable, p.listen)
	if err == nil {
		p.ready(s.server)
		err = s.run(cmd.Context())
	}
	if err != nil {
		return fmt.Errorf("the demo could not run: %w", err)
	}
	with, without := sceneOf(&s.counter), sceneOf(&s.control)
	fmt.Fprintf(cmd.OutOrStdout(), "\n%s under the lock, %d lost. Without it: %d of %d lost.\n", plural(int(with.Made), "update"), with.Lost, without.Lost, without.Made)
	if with.Lost != 0 {
		return fmt.Errorf("%d of %d updates were lost under the lock", with.Lost, with.Made)
	}
	return nil
}
