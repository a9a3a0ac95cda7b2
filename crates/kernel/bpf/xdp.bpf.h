/* Native XDP: forwards packets in the middle of connections at the driver, before the system has made a structure for the
 * packet. All others continue to evk_forward on the same interface: SYNs, ends, resets, confirmations, first answers, errors
 * of ICMP, and packets of which this program cannot tell the checksum. Both programs have the same tables. */

/* Interfaces that packets may be sent to from here, written by the balancer. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} evk_targets SEC(".maps");

/* Reads the headers of a packet. Returns -1 if it is no packet of TCP, or one that the other program must look at. */
static __always_inline int read_xdp(void *data, void *end, struct headers *head, int is6)
{
	__u32 tcp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20, length;
	if (data + tcp_at + 20 > end)
		return -1;
	if (is6) {
		struct ipv6hdr *ip = data + IP_AT;
		if (ip->version != 6 || ip->hop_limit <= 1 || ip->nexthdr != IPPROTO_TCP)
			return -1;
		copy_ipv6(&head->from.ip, &ip->saddr);
		copy_ipv6(&head->to.ip, &ip->daddr);
		if (!is_ipv6(&head->from.ip) || !is_ipv6(&head->to.ip))
			return -1;
		head->is_ipv6 = 1;
		head->tos = bpf_ntohl(*(__be32 *)ip) >> 20;
		length = bpf_ntohs(ip->payload_len);
	} else {
		struct iphdr *ip = data + IP_AT;
		if (ip->version != 4 || ip->ihl != 5 || ip->ttl <= 1 || ip->protocol != IPPROTO_TCP ||
		    ip->frag_off & bpf_htons(0x3fff) || bpf_ntohs(ip->tot_len) < 40)
			return -1;
		map_ipv4(&head->from.ip, ip->saddr);
		map_ipv4(&head->to.ip, ip->daddr);
		head->tos = ip->tos;
		length = bpf_ntohs(ip->tot_len) - 20;
	}
	struct tcphdr *tcp = data + tcp_at;
	if (take_tcp(tcp, head, length) || length > (__u64)(end - data) - tcp_at)
		return -1;
	if (head->syn || head->fin || head->rst || !head->ack)
		return -1;
	/* A sender on this machine, as in a container, may leave the rest of the checksum to the interface: then the
	 * packet has the sum of the pseudo-header. The other program keeps that. */
	__u64 pseudo = sum_ip(&head->from.ip, is6) + sum_ip(&head->to.ip, is6) + bpf_htonl(length) +
		       bpf_htonl(IPPROTO_TCP);
	return fold(pseudo) == tcp->check ? -1 : 0;
}

/* Finds the interface and the neighbour for a packet, and lets the kernel send the packet there if the program says
 * XDP_REDIRECT. Returns -1 if the other program must do it. */
static __always_inline int find_neighbour(struct xdp_md *xdp, struct bpf_fib_lookup *fib, const struct evk_ip *from,
					  const struct evk_ip *to, const struct headers *head)
{
	__u32 clock = coarse(bpf_ktime_get_coarse_ns());
	__u32 length = 20 + head->options_length + head->payload + (head->is_ipv6 ? 40 : 20);
	struct evk_way_question *question = find_question();
	if (!question)
		return -1;
	fill_question(question, xdp->ingress_ifindex, IPPROTO_TCP, from, to, head->tos, 1);
	struct evk_kept_way *way = find_place(question);
	if (way && is_answer(way, question, clock) && length <= way->mtu) {
		use_way(way, fib);
		__builtin_memcpy(fib->smac, way->macs, ETH_ALEN);
		__builtin_memcpy(fib->dmac, way->macs + ETH_ALEN, ETH_ALEN);
	} else {
		ask_way(fib, xdp->ingress_ifindex, IPPROTO_TCP, from, to, head->tos);
		fib->tot_len = length;
		if (bpf_fib_lookup(xdp, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
			return -1;
		if (way)
			keep_way(way, question, fib, clock);
	}
	return bpf_redirect_map(&evk_targets, fib->ifindex, XDP_PASS) == XDP_REDIRECT ? 0 : -1;
}

/* Writes addresses, ports and timestamps into a packet, with the checksums, the lifetime and the neighbour. */
static __always_inline int write_xdp(void *data, void *end, const struct bpf_fib_lookup *fib,
				     const struct evk_words *old, const struct evk_words *next, int is6)
{
	__u32 tcp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	if (data + tcp_at + 20 > end)
		return -1;
	struct tcphdr *tcp = data + tcp_at;
	if (next->timestamps[0] != old->timestamps[0] || next->timestamps[1] != old->timestamps[1]) {
		__be32 *place = data + tcp_at + 24;
		if ((void *)(place + 2) > end)
			return -1;
		place[0] = next->timestamps[0];
		place[1] = next->timestamps[1];
	}
	if (is6) {
		struct ipv6hdr *ip = data + IP_AT;
		__builtin_memcpy(&ip->saddr, &next->from, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, &next->to, sizeof(ip->daddr));
		ip->hop_limit -= 1;
	} else {
		struct iphdr *ip = data + IP_AT;
		/* Addresses, and the word of the lifetime with the protocol; a wrong checksum stays wrong. */
		__u64 was = sum_ip(&old->from, 0) + sum_ip(&old->to, 0) + bpf_htons(ip->ttl << 8 | ip->protocol);
		ip->saddr = next->from.word[3];
		ip->daddr = next->to.word[3];
		ip->ttl -= 1;
		__u64 is = sum_ip(&next->from, 0) + sum_ip(&next->to, 0) + bpf_htons(ip->ttl << 8 | ip->protocol);
		ip->check = change_check(ip->check, was, is);
	}
	tcp->source = next->ports[0];
	tcp->dest = next->ports[1];
	tcp->check = change_check(tcp->check, sum_words(old, is6), sum_words(next, is6));
	struct ethhdr *ethernet = data;
	__builtin_memcpy(ethernet->h_source, fib->smac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, fib->dmac, ETH_ALEN);
	return 0;
}

/* Forwards a packet of a family, or leaves it to the other program. */
static __attribute__((noinline)) int forward_xdp(struct xdp_md *xdp, int is6)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct headers head = {};
	if (is6 ? read_xdp(data, end, &head, 1) : read_xdp(data, end, &head, 0))
		return XDP_PASS;
	struct found found;
	find_connection(&head, &found, 0);
	struct evk_connection *connection = found.connection;
	const struct evk_address *client = found.client;
	int is_of_client = found.is_of_client;
	if (!connection || connection->flags & TUNNEL || !is_in_middle(connection, &head, is_of_client))
		return XDP_PASS;
	struct evk_words old = { .from = head.from.ip, .to = head.to.ip, .ports = { head.from.port, head.to.port } };
	struct evk_words next = old;
	int is_direct = connection->flags & DIRECT;
	if (is_direct) {
		/* The member has the listener's address. What it sends this way is for tc. */
		if (!is_of_client)
			return XDP_PASS;
	} else if (is_of_client) {
		next.to = connection->member;
		next.ports[1] = connection->member_port;
		if (connection->source_port) {
			next.from = connection->source;
			next.ports[0] = connection->source_port;
		}
	} else {
		next.from = connection->listener;
		next.ports[0] = connection->listener_port;
		if (connection->source_port) {
			next.to = client->ip;
			next.ports[1] = client->port;
		}
	}
	if (connection->source_port && connection->shift && head.options_length) {
		__be32 *options = data + (is6 ? ETH_HLEN + 60 : ETH_HLEN + 40);
		if ((void *)(options + 3) > end || head.options_length < 12 || options[0] != USUAL_OPTIONS)
			return XDP_PASS;
		old.timestamps[0] = next.timestamps[0] = options[1];
		old.timestamps[1] = next.timestamps[1] = options[2];
		if (is_of_client)
			next.timestamps[0] = bpf_htonl(bpf_ntohl(options[1]) + connection->shift);
		else if (options[2])
			next.timestamps[1] = bpf_htonl(bpf_ntohl(options[2]) - connection->shift);
	}
	struct bpf_fib_lookup fib;
	struct evk_ip to = is_direct ? connection->member : next.to;
	if (find_neighbour(xdp, &fib, &next.from, &to, &head) || (is_direct && !is_neighbour(&fib, &to)))
		return XDP_PASS;
	if (is6 ? write_xdp(data, end, &fib, &old, &next, 1) : write_xdp(data, end, &fib, &old, &next, 0))
		return XDP_PASS;
	note_packet(connection);
	if (is_of_client) {
		if (head.payload)
			__sync_fetch_and_add(&connection->bytes_in, head.payload);
		__u32 before = connection->client_side.next;
		if (is_direct)
			follow_direct(&head, client, connection, 1, 0);
		else
			follow(&head, &connection->client_side, &connection->member_side);
		if (!is_direct && head.payload && connection->client_side.next != before)
			note_question(connection, head.psh, head.answered == connection->member_side.next, 0);
		count(FORWARDED_TO_MEMBER);
	} else {
		if (head.payload)
			__sync_fetch_and_add(&connection->bytes_out, head.payload);
		__u32 before = connection->member_side.next;
		follow(&head, &connection->member_side, &connection->client_side);
		if (head.payload && connection->member_side.next != before) {
			__u32 seat = connection->seat;
			struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
			note_answer(connection, counts, head.answered == connection->client_side.next, 0);
		}
		count(FORWARDED_TO_CLIENT);
	}
	count(BY_XDP);
	return XDP_REDIRECT;
}

SEC("xdp")
int evk_forward_xdp(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct ethhdr *ethernet = data;
	/* A trace sees what tc sees. */
	if ((void *)(ethernet + 1) > end || find_trace())
		return XDP_PASS;
	__u16 protocol = ethernet->h_proto;
	if (protocol == bpf_htons(ETH_P_IP))
		return forward_xdp(xdp, 0);
	return protocol == bpf_htons(ETH_P_IPV6) ? forward_xdp(xdp, 1) : XDP_PASS;
}
