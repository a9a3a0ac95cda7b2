// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Takes clients' packets out of the tunnels of balancers (`evenkeel kernel attach --receive ADDRESS --balancers ...`).
 *
 * One program at the ingress of each interface of a member (tc): a packet in a tunnel from a balancer that was named goes
 * to the stack without the tunnel's headers. If no socket here has the packet's connection, the packet goes on to the next
 * member that the tunnel names. One program at the egress: the member's acceptance (SYN-ACK) tells clients a size of
 * segments that leaves room for the tunnel's headers. src/tunnel.rs has the same structures. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "socket.bpf.h"
#include "tunnel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Address of IPv6, or of IPv4 as ::ffff:a.b.c.d. */
struct evk_ip {
	__u32 word[4];
};

enum evk_count {
	TAKEN,	   /* given to this machine */
	HANDED_ON, /* sent to the next member of the row */
	STRANGERS, /* of senders that were not named: left to the system */
	MALFORMED, /* dropped */
	NO_WAY,	   /* dropped: cannot be changed, or has lived too long */
	CLAMPED,   /* acceptances with a smaller size of segments */
	COUNTS,
};

/* Balancers whose tunnels are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_ip);
	__type(value, __u32);
} evk_balancers SEC(".maps");

/* Addresses of rules, with the largest segment that fits into a tunnel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_ip);
	__type(value, __u32);
} evk_received SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} evk_received_counts SEC(".maps");

/* Memory for the options of a packet: the verifier would follow each value that a place on the stack may have. */
struct evk_options {
	__u32 at;
	__u32 length;
	__u8 bytes[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_options);
} evk_options SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(&evk_received_counts, &which);
	if (counter)
		*counter += 1;
}

static __always_inline int drop(__u32 which)
{
	count(which);
	return TC_ACT_SHOT;
}

static __always_inline void map_ipv4(struct evk_ip *ip, __u32 address)
{
	ip->word[0] = 0;
	ip->word[1] = 0;
	ip->word[2] = bpf_htonl(0xffff);
	ip->word[3] = address;
}

static __always_inline int pull(struct __sk_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + length <= end)
		return 0;
	return skb->len < length || bpf_skb_pull_data(skb, length) ? -1 : 0;
}

/* True if the system would send a packet on to somebody else. Members that forward nothing have no answer, and drop what
 * is not for them. */
static __always_inline int is_for_another(struct __sk_buff *skb, int is6, void *ip)
{
	struct bpf_fib_lookup fib = { .l4_protocol = IPPROTO_UDP, .ifindex = skb->ingress_ifindex };
	if (is6) {
		struct ipv6hdr *head = ip;
		fib.family = 10;
		__builtin_memcpy(fib.ipv6_src, &head->saddr, 16);
		__builtin_memcpy(fib.ipv6_dst, &head->daddr, 16);
	} else {
		struct iphdr *head = ip;
		fib.family = 2;
		fib.ipv4_src = head->saddr;
		fib.ipv4_dst = head->daddr;
	}
	long found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       found == BPF_FIB_LKUP_RET_FRAG_NEEDED;
}

enum verdict { TAKE, HAND_ON, BAD };

/* Looks for the socket of a packet of TCP, or of the packet that an error of ICMP quotes, at `inner`. */
static __always_inline enum verdict judge(struct __sk_buff *skb, int is6, void *inner, void *end)
{
	__u32 length = is6 ? 40 : 20;
	if (inner + length + 20 > end)
		return BAD;
	void *behind = inner + length;
	struct bpf_sock_tuple tuple = {};
	__u8 protocol = is6 ? ((struct ipv6hdr *)inner)->nexthdr : ((struct iphdr *)inner)->protocol;
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = behind;
		/* A connection that begins. */
		if (tcp->syn && !tcp->ack)
			return TAKE;
		int found;
		if (is6) {
			struct ipv6hdr *ip = inner;
			__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, 16);
			__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, 16);
			tuple.ipv6.sport = tcp->source;
			tuple.ipv6.dport = tcp->dest;
			found = has_socket(skb, &tuple, sizeof(tuple.ipv6), inner, 40, tcp);
		} else {
			struct iphdr *ip = inner;
			tuple.ipv4.saddr = ip->saddr;
			tuple.ipv4.daddr = ip->daddr;
			tuple.ipv4.sport = tcp->source;
			tuple.ipv4.dport = tcp->dest;
			found = has_socket(skb, &tuple, sizeof(tuple.ipv4), inner, 20, tcp);
		}
		return found ? TAKE : HAND_ON;
	}
	if (protocol != (is6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return BAD;
	/* The error quotes a packet of this machine to the client. */
	void *quoted = behind + 8;
	if (quoted + length + 8 > end)
		return BAD;
	__u16 *ports = quoted + length;
	if (is6) {
		struct ipv6hdr *ip = quoted;
		__builtin_memcpy(tuple.ipv6.saddr, &ip->daddr, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &ip->saddr, 16);
		tuple.ipv6.sport = ports[1];
		tuple.ipv6.dport = ports[0];
		return has_socket(skb, &tuple, sizeof(tuple.ipv6), inner, 40, 0) ? TAKE : HAND_ON;
	}
	struct iphdr *ip = quoted;
	if (ip->ihl != 5)
		return TAKE;
	tuple.ipv4.saddr = ip->daddr;
	tuple.ipv4.daddr = ip->saddr;
	tuple.ipv4.sport = ports[1];
	tuple.ipv4.dport = ports[0];
	return has_socket(skb, &tuple, sizeof(tuple.ipv4), inner, 20, 0) ? TAKE : HAND_ON;
}

/* Sends a packet in its tunnel on to the next member. Each member shortens the list of those that are left, so a packet
 * never goes round. */
static __always_inline int hand_on(struct __sk_buff *skb, int is6, __u32 next)
{
	__u32 others_at = ETH_HLEN + (is6 ? 40 : 20) + PLAIN;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + others_at + 4 + (is6 ? 32 : 8) > end)
		return drop(MALFORMED);
	struct others *others = data + others_at;
	__u8 after = next + 1;
	if (is6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		struct in6_addr *ips = (void *)(others + 1);
		struct in6_addr to = next ? ips[1] : ips[0];
		__u8 lifetime = ip->hop_limit;
		if (lifetime <= 1)
			return drop(NO_WAY);
		lifetime--;
		if (bpf_skb_store_bytes(skb, ETH_HLEN + 24, &to, sizeof(to), BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN + 7, &lifetime, 1, BPF_F_RECOMPUTE_CSUM))
			return drop(NO_WAY);
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 *ips = (void *)(others + 1);
		__u32 to = next ? ips[1] : ips[0], old = ip->daddr;
		if (ip->ttl <= 1)
			return drop(NO_WAY);
		__u16 before = bpf_htons(ip->ttl << 8 | ip->protocol);
		__u16 now = bpf_htons((ip->ttl - 1) << 8 | ip->protocol);
		/* The header's checksum balances both. */
		ip->ttl -= 1;
		ip->daddr = to;
		bpf_l3_csum_replace(skb, ETH_HLEN + 10, before, now, 2);
		bpf_l3_csum_replace(skb, ETH_HLEN + 10, old, to, 4);
	}
	if (bpf_skb_store_bytes(skb, others_at + 1, &after, 1, BPF_F_RECOMPUTE_CSUM))
		return drop(NO_WAY);
	count(HANDED_ON);
	/* The other members are where the balancers are. A look for a route is not possible at machines that forward
	 * nothing. */
	return bpf_redirect_neigh(skb->ingress_ifindex, 0, 0, 0);
}

/* Takes a packet that may be in a tunnel. */
static __always_inline int receive(struct __sk_buff *skb, int is6)
{
	__u32 outer = is6 ? 40 : 20, gue_at = ETH_HLEN + outer + 8;
	if (pull(skb, gue_at + 4))
		return TC_ACT_UNSPEC;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + gue_at + 4 > end)
		return TC_ACT_UNSPEC;
	struct evk_ip from;
	__u32 length;
	if (is6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if (ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return TC_ACT_UNSPEC;
		__builtin_memcpy(&from, &ip->saddr, 16);
		length = bpf_ntohs(ip->payload_len);
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff))
			return TC_ACT_UNSPEC;
		map_ipv4(&from, ip->saddr);
		length = bpf_ntohs(ip->tot_len);
		if (length)
			length -= 20;
	}
	struct udp_header *udp = data + ETH_HLEN + outer;
	if (udp->dest != bpf_htons(TUNNEL_PORT) || is_for_another(skb, is6, data + ETH_HLEN))
		return TC_ACT_UNSPEC;
	/* Another tunnel may end here. */
	if (!bpf_map_lookup_elem(&evk_balancers, &from)) {
		count(STRANGERS);
		return TC_ACT_UNSPEC;
	}
	__u32 there = skb->len - ETH_HLEN - outer;
	/* Several segments together may be longer than a header can say. */
	if (!length && skb->gso_size)
		length = there;
	struct gue *gue = data + gue_at;
	__u32 words = gue->words;
	if (length > there || (bpf_ntohs(udp->length) != length && !skb->gso_size) ||
	    gue->protocol != (is6 ? IPPROTO_IPV6 : IPPROTO_IPIP) || gue->flags ||
	    (words && words != (is6 ? OTHERS_WORDS6 : OTHERS_WORDS)))
		return drop(MALFORMED);
	__u32 headers = words ? (is6 ? ROW6 : ROW4) : PLAIN;
	/* The packet within, and a header of TCP, or of ICMP with what it quotes. */
	__u32 inner_at = ETH_HLEN + outer + headers;
	__u32 ip_length = is6 ? 40 : 20;
	if (length < headers + ip_length + 20 || pull(skb, inner_at + ip_length + 20))
		return drop(MALFORMED);
	__u32 wanted = inner_at + 2 * ip_length + 16;
	if (skb->len >= wanted && pull(skb, wanted))
		return drop(MALFORMED);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	void *inner = data + inner_at;
	if (inner + ip_length + 20 > end)
		return drop(MALFORMED);
	__u32 next = 0, known = 0;
	if (words) {
		struct others *others = data + gue_at + 4;
		if (others->type != OF_ROW || others->count > OTHERS || others->next > others->count)
			return drop(MALFORMED);
		next = others->next;
		known = others->count;
	}
	struct evk_ip to;
	__u32 total;
	if (is6) {
		struct ipv6hdr *ip = inner;
		__builtin_memcpy(&to, &ip->daddr, 16);
		total = bpf_ntohs(ip->payload_len);
		if (ip->version != 6)
			return drop(MALFORMED);
		if (total)
			total += 40;
	} else {
		struct iphdr *ip = inner;
		map_ipv4(&to, ip->daddr);
		total = bpf_ntohs(ip->tot_len);
		if (ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
			return drop(MALFORMED);
	}
	if (!total && skb->gso_size)
		total = length - headers;
	if (total < ip_length + 8 || total > length - headers || !bpf_map_lookup_elem(&evk_received, &to))
		return drop(MALFORMED);
	enum verdict verdict = judge(skb, is6, inner, end);
	if (verdict == BAD)
		return drop(MALFORMED);
	if (verdict == HAND_ON && next < known)
		return hand_on(skb, is6, next);
	__s32 away = outer + headers;
	if (bpf_skb_adjust_room(skb, -away, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return drop(NO_WAY);
	count(TAKEN);
	return TC_ACT_UNSPEC;
}

static __attribute__((noinline)) int receive_ipv4(struct __sk_buff *skb)
{
	return receive(skb, 0);
}

static __attribute__((noinline)) int receive_ipv6(struct __sk_buff *skb)
{
	return receive(skb, 1);
}

SEC("tc")
int evk_receive(struct __sk_buff *skb)
{
	/* 0 is a packet to this machine's hardware address. */
	if (skb->pkt_type || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return receive_ipv4(skb);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? receive_ipv6(skb) : TC_ACT_UNSPEC;
}

#define SEGMENT_SIZE 2 /* number of the option with the largest segment */
#define MAX_OPTIONS 40

/* Finds the option with the largest segment: its place among the options in memory, or -1. */
__attribute__((noinline)) int evk_find_segment_size(void)
{
	__u32 zero = 0;
	struct evk_options *options = bpf_map_lookup_elem(&evk_options, &zero);
	if (!options)
		return -1;
	volatile __u32 *place = &options->at;
	*place = 0;
	for (__u32 i = 0; i < MAX_OPTIONS; i++) {
		__u32 at = *place;
		if (at + 4 > options->length || at > MAX_OPTIONS)
			return -1;
		__u8 kind = options->bytes[at & 63], size = options->bytes[(at + 1) & 63];
		if (kind == SEGMENT_SIZE)
			return size == 4 ? (int)at : -1;
		if (kind == 0 || (kind != 1 && size < 2))
			return -1;
		*place = at + (kind == 1 ? 1 : size);
	}
	return -1;
}

SEC("tc")
int evk_clamp(struct __sk_buff *skb)
{
	int is6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!is6 && skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	__u32 tcp_at = ETH_HLEN + (is6 ? 40 : 20);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + tcp_at + 20 > end)
		return TC_ACT_UNSPEC;
	struct evk_ip from;
	if (is6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if (ip->nexthdr != IPPROTO_TCP)
			return TC_ACT_UNSPEC;
		__builtin_memcpy(&from, &ip->saddr, 16);
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		if (ip->protocol != IPPROTO_TCP || ip->ihl != 5)
			return TC_ACT_UNSPEC;
		map_ipv4(&from, ip->saddr);
	}
	struct tcphdr *tcp = data + tcp_at;
	__u32 zero = 0, length = tcp->doff * 4;
	if (!tcp->syn || !tcp->ack || length <= 20 || length > 60)
		return TC_ACT_UNSPEC;
	length -= 20;
	__u32 *largest = bpf_map_lookup_elem(&evk_received, &from);
	struct evk_options *options = bpf_map_lookup_elem(&evk_options, &zero);
	if (!largest || !*largest || !options || bpf_skb_load_bytes(skb, tcp_at + 20, options->bytes, length))
		return TC_ACT_UNSPEC;
	options->length = length;
	int at = evk_find_segment_size();
	if (at < 0 || at > MAX_OPTIONS)
		return TC_ACT_UNSPEC;
	__u32 size = (__u32)options->bytes[(at + 2) & 63] << 8 | options->bytes[(at + 3) & 63];
	if (size <= *largest)
		return TC_ACT_UNSPEC;
	/* All options, as the size may begin at an odd byte. */
	__u8 old[MAX_OPTIONS] = {}, now[MAX_OPTIONS] = {};
	if (bpf_skb_load_bytes(skb, tcp_at + 20, old, length))
		return TC_ACT_UNSPEC;
	__u8 bytes[2] = { *largest >> 8, *largest };
	if (bpf_skb_store_bytes(skb, tcp_at + 20 + at + 2, bytes, 2, 0) ||
	    bpf_skb_load_bytes(skb, tcp_at + 20, now, length))
		return TC_ACT_UNSPEC;
	__s64 change = bpf_csum_diff((void *)old, MAX_OPTIONS, (void *)now, MAX_OPTIONS, 0);
	bpf_l4_csum_replace(skb, tcp_at + 16, 0, change, 0);
	count(CLAMPED);
	return TC_ACT_UNSPEC;
}
