// Package port reserves ports of the loopback interface for servers that a test stops and starts
// again.
package port

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports lie below the range from which Linux takes the ports of outgoing connections. Inside that
// range, while a server is down, an outgoing connection may get the port of the server and keep it
// from coming back; a client dialling it may even get connected to itself. The bus port of a
// cluster node is port+10000, so it neither meets another server nor that range.
const (
	first = 10240
	last  = 20240
)

// Reserve picks a free TCP port of 127.0.0.1 and keeps other users of this package, in this process
// and in others, from picking it until the reservation is closed. A server that is stopped does not
// hold its TCP port, yet must find it again; what marks the port as taken is therefore the UDP port
// of the same number, which has no other use here and which the kernel frees if this process dies.
func Reserve() (port int, reservation io.Closer, err error) {
	for range 1000 {
		port = first + rand.IntN(last-first)
		addr := net.JoinHostPort(loopback, strconv.Itoa(port))
		udp, refused := net.ListenPacket("udp", addr)
		if refused != nil {
			err = refused
			continue
		}
		tcp, refused := net.Listen("tcp", addr)
		if refused == nil {
			return port, udp, tcp.Close()
		}
		err = errors.Join(refused, udp.Close())
	}
	return 0, nil, fmt.Errorf("no port of %s from %d to %d is free: %w", loopback, first, last, err)
}
