package realredis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports lie below the range from which Linux takes the ports of outgoing
// connections. Inside that range, while a server is down, an outgoing
// connection may get the port of the server and keep it from coming back; a
// client dialling it may even get connected to itself. The bus port of a
// cluster node is port+10000, so it neither meets another server nor that
// range.
const (
	firstPort = 10240
	lastPort  = 20240
)

// reservePort picks a free TCP port and keeps other users of this package, in
// this process and in others, from picking it until the reservation is closed.
// A killed server does not hold its TCP port, yet must find it again; what
// marks the port as taken is therefore the UDP port of the same number, which
// nobody else wants and which the kernel frees if this process dies.
func reservePort() (port int, reservation net.PacketConn, err error) {
	for range 1000 {
		port = firstPort + rand.IntN(lastPort-firstPort)
		addr := net.JoinHostPort(loopback, strconv.Itoa(port))
		reservation, err = net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			if err = l.Close(); err == nil {
				return port, reservation, nil
			}
		}
		err = errors.Join(err, reservation.Close())
	}
	return 0, nil, fmt.Errorf("realredis: no free port on %s: %w", loopback, err)
}
