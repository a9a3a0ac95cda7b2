/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Tunnels to members, and rows of candidates: part of forward.bpf.c.
 *
 * A hash of the client's and the listener's addresses and ports names a row of the group's table. All balancers with the
 * same members have the same table. A SYN goes to the better one of the first two members of the row that may get
 * connections, and each packet names the others of the row. A packet whose connection is not known here, as another
 * balancer has begun it, goes to the first one; receive.bpf.c sends the packet to the next one if no socket there has the
 * connection. */
#include "socket.bpf.h"
#include "tunnel.h"

#define ROWS 512
#define ROW_SEATS 3
#define ROW_CHOICES 2
#define NO_GROUP (~0U)
#define MISSED_TURNS 8

struct evk_row {
	__u16 seats[4]; /* the last one is not in use; MAX_SEATS and above: none */
};

struct evk_rows {
	struct evk_row rows[ROWS];
};

/* Table of each group: for members of IPv4, and behind these, of IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct evk_rows);
} evk_rows SEC(".maps");

/* Tunnel of a packet. In memory, as the stack has no room. */
struct evk_tunnel {
	struct evk_ip from, to;
	struct evk_ip others[OTHERS];
	__u32 count;   /* of others */
	__u32 has_row; /* the header has room for others */
	__u32 hash;
	__u32 tos;
	struct evk_address listener, client;
	struct bpf_sock_tuple tuple;
	struct bpf_fib_lookup fib;
	__u8 header[40 + ROW6];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_tunnel);
} evk_tunnel SEC(".maps");

static __always_inline struct evk_tunnel *find_tunnel(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_tunnel, &zero);
}

static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	word *= 0xcc9e2d51;
	word = word << 15 | word >> 17;
	hash ^= word * 0x1b873593;
	hash = hash << 13 | hash >> 19;
	return hash * 5 + 0xe6546b64;
}

/* Hash of the client's and the listener's addresses and ports (MurmurHash3, by Appleby), the same on all machines. */
static __always_inline __u32 hash_addresses(const struct evk_address *client, const struct evk_address *listener)
{
	__u32 hash = mix(0, (__u32)bpf_ntohs(client->port) << 16 | bpf_ntohs(listener->port));
	for (int i = 0; i < 4; i++) {
		hash = mix(hash, bpf_ntohl(client->ip.word[i]));
		hash = mix(hash, bpf_ntohl(listener->ip.word[i]));
	}
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

/* Finds the row of a hash in the table of a group and a family. */
static __always_inline struct evk_row *find_row(__u32 group, __u32 hash, int is6)
{
	__u32 key = is6 ? group + MAX_GROUPS : group;
	struct evk_rows *rows = bpf_map_lookup_elem(&evk_rows, &key);
	return rows ? &rows->rows[hash & (ROWS - 1)] : 0;
}

/* Chooses the better one of the row's first two seats that may get connections. Returns as `choose_seat`. */
__attribute__((noinline)) int evk_choose_of_row(__u32 number, __u32 hash)
{
	__u32 zero = 0;
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!group || !best)
		return -2;
	__u32 form = group->form, growth = group->growth, asked = ask_seats(best, group->form);
	if (form != FORM_SCORE && form != FORM_TURNS && form != FORM_PREQUAL)
		return -2;
	__u64 mark = find_mark(group, 0);
	struct evk_row *row = find_row(number, hash, best->is_ipv6);
	if (!row)
		return -1;
	__u32 found = 0, chosen = MAX_SEATS;
	__u64 least = NO_SCORE, most = 0;
	best->count = 0;
	for (__u32 i = 0; i < ROW_SEATS; i++) {
		__u32 seat = row->seats[i];
		if (seat >= MAX_SEATS || found >= ROW_CHOICES)
			continue;
		__u64 score = evk_score(seat, asked, growth, mark);
		best->seats[i] = seat;
		best->scores[i] = score;
		best->count = i + 1;
		if (score == NO_SCORE)
			continue;
		found++;
		if (score > most)
			most = score;
		if (score < least) {
			least = score;
			chosen = seat;
		}
	}
	if (chosen >= MAX_SEATS)
		return -1;
	if (form == FORM_TURNS) {
		struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &chosen);
		struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &chosen);
		if (terms && counts) {
			/* A member that was away has missed this number of turns at most. */
			__u64 missed = MISSED_TURNS * (__u64)terms->base;
			if (most > missed && least < most - missed)
				least = most - missed;
			counts->pass = least + terms->base;
		}
	}
	return chosen;
}

/* Fills in the tunnel to the member of a seat, with the others of its row if a group is given. Returns -1 if there is no
 * address for it. */
__attribute__((noinline)) int evk_aim(__u32 seat, __u32 group)
{
	struct evk_tunnel *tunnel = find_tunnel();
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_ip *source = bpf_map_lookup_elem(&evk_nat_addresses, &seat);
	if (!tunnel || !terms || !source)
		return -1;
	int is6 = is_ipv6(&terms->address.ip);
	if ((!source->half[0] && !source->half[1]) || is_ipv6(source) != is6)
		return -1;
	tunnel->to = terms->address.ip;
	tunnel->from = *source;
	tunnel->has_row = group != NO_GROUP;
	__builtin_memset(tunnel->others, 0, sizeof(tunnel->others));
	__u32 count = 0;
	struct evk_row *row = group == NO_GROUP ? 0 : find_row(group, tunnel->hash, is6);
	for (__u32 i = 0; row && i < ROW_SEATS; i++) {
		__u32 other = row->seats[i];
		if (other == seat || other >= MAX_SEATS)
			continue;
		struct evk_terms *of_other = bpf_map_lookup_elem(&evk_terms, &other);
		if (!of_other || is_ipv6(&of_other->address.ip) != is6 || is_equal(&of_other->address.ip, &tunnel->to))
			continue;
		if (count == 0)
			tunnel->others[0] = of_other->address.ip;
		else if (count == 1)
			tunnel->others[1] = of_other->address.ip;
		else
			break;
		count++;
	}
	tunnel->count = count;
	return 0;
}

/* Lowers the lifetime of a packet. Returns -1 if the packet may not go on. */
static __always_inline int lower_lifetime(struct __sk_buff *skb, int is6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + (is6 ? 40 : 20) > end)
		return -1;
	if (is6) {
		struct ipv6hdr *ip = data + IP_AT;
		if (ip->hop_limit <= 1)
			return -1;
		__u32 before = bpf_htonl(ip->nexthdr << 8 | ip->hop_limit);
		__u32 after = bpf_htonl(ip->nexthdr << 8 | (ip->hop_limit - 1));
		ip->hop_limit -= 1;
		bpf_csum_update(skb, bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), 0));
		return 0;
	}
	struct iphdr *ip = data + IP_AT;
	if (ip->ttl <= 1)
		return -1;
	__u16 before = bpf_htons(ip->ttl << 8 | ip->protocol);
	__u16 after = bpf_htons((ip->ttl - 1) << 8 | ip->protocol);
	ip->ttl -= 1;
	bpf_l3_csum_replace(skb, IP_AT + 10, before, after, 2);
	return 0;
}

/* Returns the sum of a header of IPv4 for its checksum. */
static __always_inline __u16 sum_ipv4(struct iphdr *ip)
{
	__u32 sum = bpf_csum_diff(0, 0, (void *)ip, sizeof(*ip), 0);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* Writes the headers of the tunnel for a packet of this length. A length of 0 is that of several segments together. */
static __always_inline void write_tunnel(struct evk_tunnel *tunnel, int is6, __u32 inner)
{
	__u32 behind = (tunnel->has_row ? (is6 ? ROW6 : ROW4) : PLAIN) + inner;
	__u32 total = is6 ? behind : behind + 20;
	struct udp_header *udp;
	if (is6) {
		struct ipv6hdr *ip = (void *)tunnel->header;
		*(__be32 *)ip = bpf_htonl(6U << 28 | tunnel->tos << 20);
		ip->payload_len = total > 0xffff ? 0 : bpf_htons(total);
		ip->nexthdr = IPPROTO_UDP;
		ip->hop_limit = 64;
		__builtin_memcpy(&ip->saddr, &tunnel->from, 16);
		__builtin_memcpy(&ip->daddr, &tunnel->to, 16);
		udp = (void *)(ip + 1);
	} else {
		struct iphdr *ip = (void *)tunnel->header;
		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version = 4;
		ip->ihl = 5;
		ip->tos = tunnel->tos;
		ip->tot_len = total > 0xffff ? 0 : bpf_htons(total);
		ip->frag_off = bpf_htons(0x4000);
		ip->ttl = 64;
		ip->protocol = IPPROTO_UDP;
		ip->saddr = tunnel->from.word[3];
		ip->daddr = tunnel->to.word[3];
		ip->check = sum_ipv4(ip);
		udp = (void *)(ip + 1);
	}
	/* Routers spread packets of different connections by the port. */
	udp->source = bpf_htons(0xc000 | tunnel->hash >> 18);
	udp->dest = bpf_htons(TUNNEL_PORT);
	udp->length = behind > 0xffff ? 0 : bpf_htons(behind);
	/* None is allowed in tunnels, also over IPv6 (RFC 6935): the packet within has its own. */
	udp->check = 0;
	struct gue *gue = (void *)(udp + 1);
	gue->words = tunnel->has_row ? (is6 ? OTHERS_WORDS6 : OTHERS_WORDS) : 0;
	gue->protocol = is6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	gue->flags = 0;
	if (!tunnel->has_row)
		return;
	struct others *others = (void *)(gue + 1);
	others->type = OF_ROW;
	others->next = 0;
	others->count = tunnel->count;
	others->zero = 0;
	if (is6) {
		__builtin_memcpy(others + 1, tunnel->others, sizeof(tunnel->others));
	} else {
		__u32 *ips = (void *)(others + 1);
		ips[0] = tunnel->others[0].word[3];
		ips[1] = tunnel->others[1].word[3];
	}
}

/* Quoted bytes of a packet of TCP: the header, as the checksum may be left to the interface. */
#define QUOTED_TCP 20

/* Answers a packet of a client that is too large for the tunnel with an error of ICMP, which tells the largest size. */
__attribute__((noinline)) int evk_tell_too_large(struct __sk_buff *skb, __u32 size, __u32 is6)
{
	struct evk_tunnel *tunnel = find_tunnel();
	if (!tunnel || size < (is6 ? 1280 : 68) || size > 0xffff)
		return drop();
	__u32 ip_length = is6 ? 40 : 20, quoted = ip_length + QUOTED_TCP, more = ip_length + 8;
	if (bpf_skb_change_tail(skb, ETH_HLEN + quoted, 0) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, tunnel->header, is6 ? 60 : 40))
		return drop();
	/* The sum of a message: its header and what it quotes. */
	__u32 first = bpf_htonl(is6 ? 2U << 24 : (3U << 24 | 4U << 16)), second = bpf_htonl(size);
	__u32 sum = bpf_csum_diff(0, 0, (void *)tunnel->header, is6 ? 60 : 40, 0);
	sum = bpf_csum_diff(0, 0, &first, 4, sum);
	sum = bpf_csum_diff(0, 0, &second, 4, sum);
	if (is6) {
		/* The addresses, the length and the protocol. */
		__u32 rest[2] = { bpf_htonl(quoted + 8), bpf_htonl(IPPROTO_ICMPV6) };
		sum = bpf_csum_diff(0, 0, (void *)tunnel->header + 8, 32, sum);
		sum = bpf_csum_diff(0, 0, rest, 8, sum);
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, 0))
		return drop();
	__u8 *head = tunnel->header;
	if (is6) {
		struct ipv6hdr *ip = (void *)head;
		struct in6_addr client = ip->saddr;
		ip->payload_len = bpf_htons(quoted + 8);
		ip->nexthdr = IPPROTO_ICMPV6;
		ip->hop_limit = 64;
		*(__be32 *)ip = bpf_htonl(6U << 28);
		ip->saddr = ip->daddr;
		ip->daddr = client;
		copy_ipv6(&tunnel->from, &ip->saddr);
		copy_ipv6(&tunnel->to, &ip->daddr);
	} else {
		struct iphdr *ip = (void *)head;
		__u32 client = ip->saddr;
		ip->tos = 0;
		ip->tot_len = bpf_htons(more + quoted);
		ip->id = 0;
		ip->frag_off = 0;
		ip->ttl = 64;
		ip->protocol = IPPROTO_ICMP;
		ip->saddr = ip->daddr;
		ip->daddr = client;
		ip->check = 0;
		ip->check = sum_ipv4(ip);
		map_ipv4(&tunnel->from, ip->saddr);
		map_ipv4(&tunnel->to, ip->daddr);
	}
	__u8 *message = head + (is6 ? 40 : 20);
	__builtin_memcpy(message, &first, 4);
	*(__u16 *)(message + 2) = ~sum;
	__builtin_memcpy(message + 4, &second, 4);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, head, is6 ? 48 : 28, BPF_F_RECOMPUTE_CSUM))
		return drop();
	ask_way(&tunnel->fib, skb->ingress_ifindex, is6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, &tunnel->from, &tunnel->to, 0);
	long found = bpf_fib_lookup(skb, &tunnel->fib, sizeof(tunnel->fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return drop();
	count(ERRORS);
	return redirect(&tunnel->fib);
}

/* Sends a packet through the tunnel that was filled in. */
__attribute__((noinline)) int evk_send_by_tunnel(struct __sk_buff *skb)
{
	struct evk_tunnel *tunnel = find_tunnel();
	if (!tunnel)
		return TC_ACT_SHOT;
	int is6 = is_ipv6(&tunnel->to);
	__u32 more = tunnel->has_row ? (is6 ? 40 + ROW6 : 20 + ROW4) : (is6 ? 40 + PLAIN : 20 + PLAIN);
	__u32 inner = skb->len - ETH_HLEN;
	struct bpf_fib_lookup *fib = &tunnel->fib;
	ask_way(fib, skb->ingress_ifindex, IPPROTO_UDP, &tunnel->from, &tunnel->to, tunnel->tos);
	/* Several segments together are cut into smaller ones. */
	if (!skb->gso_size)
		fib->tot_len = inner + more;
	long found = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return evk_tell_too_large(skb, fib->mtu_result - more, is6);
	if ((found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH) || lower_lifetime(skb, is6))
		return drop();
	__u64 flags = BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      (is6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	if (bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, flags))
		return drop();
	write_tunnel(tunnel, is6, inner);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, tunnel->header, more, BPF_F_RECOMPUTE_CSUM))
		return drop();
	return redirect(fib);
}

/* Answers of functions that have filled in the tunnel, or the draft's SYN: the caller of all sends the packet, with more room
 * on the stack. */
#define SEND_BY_TUNNEL 1000
#define SEND_SYN 1001

/* Fills in the tunnel to the member of a connection for a client's packet. */
static __attribute__((noinline)) int aim_at_member(const struct evk_address *client,
						   const struct evk_connection *connection)
{
	struct evk_tunnel *tunnel = find_tunnel();
	if (!tunnel)
		return TC_ACT_SHOT;
	__builtin_memset(&tunnel->listener, 0, sizeof(tunnel->listener));
	tunnel->listener.ip = connection->listener;
	tunnel->listener.port = connection->listener_port;
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &tunnel->listener);
	__u32 group = listener && listener->way & WAY_ROWS ? listener->group : NO_GROUP;
	tunnel->hash = hash_addresses(client, &tunnel->listener);
	tunnel->tos = 0;
	if (evk_aim(connection->seat, group))
		return drop();
	tunnel->to = connection->member;
	return SEND_BY_TUNNEL;
}

/* Sends a packet to a listener whose connection is not known here to the first member of its row, or leaves the packet to
 * a socket of this machine. An error of ICMP, which quotes a packet of the connection, goes the same way. */
static __attribute__((noinline)) int forward_by_row(struct __sk_buff *skb, const struct evk_address *client,
						    const struct evk_address *to, int is_error)
{
	struct evk_tunnel *tunnel = find_tunnel();
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, to);
	if (!tunnel || !listener || !(listener->way & WAY_ROWS))
		return TC_ACT_UNSPEC;
	int is6 = is_ipv6(&to->ip);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 tcp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	struct tcphdr *tcp = 0;
	if (!is_error) {
		if (data + tcp_at + 20 > end)
			return TC_ACT_UNSPEC;
		tcp = data + tcp_at;
	} else if (data + tcp_at > end) {
		return TC_ACT_UNSPEC;
	}
	__builtin_memset(&tunnel->tuple, 0, sizeof(tunnel->tuple));
	int found;
	if (is6) {
		__builtin_memcpy(tunnel->tuple.ipv6.saddr, &client->ip, 16);
		__builtin_memcpy(tunnel->tuple.ipv6.daddr, &to->ip, 16);
		tunnel->tuple.ipv6.sport = client->port;
		tunnel->tuple.ipv6.dport = to->port;
		found = has_socket(skb, &tunnel->tuple, sizeof(tunnel->tuple.ipv6), data + IP_AT, 40, tcp);
	} else {
		tunnel->tuple.ipv4.saddr = client->ip.word[3];
		tunnel->tuple.ipv4.daddr = to->ip.word[3];
		tunnel->tuple.ipv4.sport = client->port;
		tunnel->tuple.ipv4.dport = to->port;
		found = has_socket(skb, &tunnel->tuple, sizeof(tunnel->tuple.ipv4), data + IP_AT, 20, tcp);
	}
	if (found)
		return TC_ACT_UNSPEC;
	tunnel->hash = hash_addresses(client, to);
	tunnel->tos = 0;
	struct evk_row *row = find_row(listener->group, tunnel->hash, is6);
	if (!row || row->seats[0] >= MAX_SEATS || evk_aim(row->seats[0], listener->group))
		return TC_ACT_UNSPEC;
	count(is_error ? ERRORS : BY_ROW);
	return SEND_BY_TUNNEL;
}
