/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Connections that sockets of this machine have: shared by forward.bpf.c and receive.bpf.c. */
#pragma once

/* State of a socket that waits for connections. */
#define LISTENS 10

/* True if a socket of this machine has the connection of a packet of TCP, or a cookie of the machine is in the packet.
 * The packet's headers are at `ip`, with `ip_length` bytes, and at `tcp`; 0 for a packet that is quoted by an error. */
static __always_inline int has_socket(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 length, void *ip,
				      __u32 ip_length, struct tcphdr *tcp)
{
	struct bpf_sock *socket = bpf_skc_lookup_tcp(skb, tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	int found = socket->state != LISTENS;
	if (!found && tcp)
		found = !bpf_tcp_check_syncookie(socket, ip, ip_length, tcp, sizeof(*tcp));
	bpf_sk_release(socket);
	return found;
}
