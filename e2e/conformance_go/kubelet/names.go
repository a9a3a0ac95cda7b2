package main

import "net"

// Answers questions of DNS: there is no record of the name. Stands for the server of names of the suite's UDPRoutes, of
// which an answer is expected, and no record.
func serveNames() error {
	socket, err := net.ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	message := make([]byte, 4096)
	for {
		length, client, err := socket.ReadFrom(message)
		if err != nil {
			return err
		}
		if length < 12 {
			continue
		}
		// An answer has the first bit of the flags.
		message[2] |= 0x80
		if _, err := socket.WriteTo(message[:length], client); err != nil {
			return err
		}
	}
}
