package faultproxy

// MuteFlows is what a firewall or a load balancer does to connections that it has
// forgotten: from now on nothing passes over those that exist, in either direction, their
// end included, and nobody is told. Connections that are opened afterwards work. It lasts
// until Cut or Close.
func (p *Proxy) MuteFlows() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.deaf, c.mute = true, true
		c.stop(requests)
		c.queues[replies].items = nil
	}
}
