/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Fragments of datagrams: a part of udp.bpf.h.
 *
 * The first fragment of a datagram has the ports, and goes where a whole datagram would go. The others follow by the
 * table evk_fragments. If the first one was left to the system, or has not come before the others, then all of them are
 * left to the system, which puts datagrams together: evk_passed_fragments says that others have come before. That table
 * has the datagrams of strangers, too, and so is another one. If the first one was an answer that is late, then all of them
 * are dropped. */

/* Time after which a datagram's fragments are not expected any more: that of the system. */
#define FRAGMENTS_NS 30000000000ULL

/* Fragments with the same four belong to one datagram. */
struct evk_fragments_key {
	struct evk_ip from, to;
	__u32 id;
	__u32 zero;
};

struct evk_fragments {
	__u64 ns;
	struct evk_ip from, to; /* addresses that the fragments get */
	struct evk_ip hop;	/* address to which they are sent */
	__u32 outcome;		/* of `enum evk_outcome` */
	__u32 id;		/* identification that the fragments get */
};

/* A datagram that the kernel removes is lost if its fragments are under way, and its sender's program sends again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct evk_fragments_key);
	__type(value, struct evk_fragments);
} evk_fragments SEC(".maps");

/* Times at which fragments were left to the system whose first one was not known. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct evk_fragments_key);
	__type(value, __u64);
} evk_passed_fragments SEC(".maps");

struct evk_fragments_draft {
	struct evk_fragments_key key;
	struct evk_fragments value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_fragments_draft);
} evk_fragments_draft SEC(".maps");

static __always_inline struct evk_fragments_draft *find_fragments_draft(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_fragments_draft, &zero);
}

/* Length of the header of fragments of IPv6. */
#define FRAGMENT_HEADER 8

/* Reads a fragment of a datagram to the draft. `NO_PART`: the packet is another one, or its lengths are wrong. */
static __always_inline enum part read_fragment(struct __sk_buff *skb, int is6, struct headers *head,
					       struct evk_fragments_key *key)
{
	__u32 udp_at = ETH_HLEN + (is6 ? 40 + FRAGMENT_HEADER : 20);
	/* The last fragment may be shorter. */
	pull(skb, udp_at + 8);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 length;
	int is_later, has_more;
	__builtin_memset(key, 0, sizeof(*key));
	if (is6) {
		struct ipv6hdr *ip = data + IP_AT;
		__u8 *fragment = (void *)(ip + 1);
		if ((void *)(fragment + FRAGMENT_HEADER) > end || ip->nexthdr != IPPROTO_FRAGMENT ||
		    fragment[0] != IPPROTO_UDP)
			return NO_PART;
		copy_ipv6(&key->from, &ip->saddr);
		copy_ipv6(&key->to, &ip->daddr);
		/* As for whole datagrams. */
		if (!is_ipv6(&key->from) || !is_ipv6(&key->to))
			return NO_PART;
		key->id = *(__be32 *)(fragment + 4);
		is_later = !!(*(__be16 *)(fragment + 2) & bpf_htons(0xfff8));
		has_more = fragment[3] & 1;
		length = bpf_ntohs(ip->payload_len);
		if (length < FRAGMENT_HEADER || length > skb->len - ETH_HLEN - 40)
			return NO_PART;
		length -= FRAGMENT_HEADER;
		head->tos = bpf_ntohl(*(__be32 *)ip) >> 20;
		head->keeps_whole = 1;
		head->is_ipv6 = 1;
	} else {
		struct iphdr *ip = data + IP_AT;
		if ((void *)(ip + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return NO_PART;
		map_ipv4(&key->from, ip->saddr);
		map_ipv4(&key->to, ip->daddr);
		key->id = ip->id;
		is_later = !!(ip->frag_off & bpf_htons(0x1fff));
		has_more = !!(ip->frag_off & bpf_htons(0x2000));
		length = bpf_ntohs(ip->tot_len);
		if (length < 20 || length > skb->len - ETH_HLEN)
			return NO_PART;
		length -= 20;
		head->tos = ip->tos;
		head->keeps_whole = !!(ip->frag_off & bpf_htons(0x4000));
	}
	head->from.ip = key->from;
	head->to.ip = key->to;
	if (is_later)
		return LATER_PART;
	struct udphdr *udp = data + udp_at;
	if (!has_more || (void *)(udp + 1) > end)
		return NO_PART;
	__u32 size = bpf_ntohs(udp->len);
	if (length < 8 || size <= length || !udp->source || (is6 && !udp->check))
		return NO_PART;
	head->from.port = udp->source;
	head->to.port = udp->dest;
	/* That of the whole datagram. */
	head->payload = size - 8;
	return FIRST_PART;
}

/* True if a time is so near that the datagram's fragments may be under way. */
static __always_inline int is_under_way(__u64 ns, __u64 now)
{
	/* Another CPU may have a later clock. */
	return (__s64)(now - ns) < (__s64)FRAGMENTS_NS;
}

/* True if a fragment of the datagram has come before the first one, and was left to the system. */
static __always_inline int has_passed(const struct evk_fragments_key *key, __u64 now)
{
	__u64 *passed = bpf_map_lookup_elem(&evk_passed_fragments, key);
	return passed && is_under_way(*passed, now);
}

/* Gives a fragment the identification that its datagram has behind the balancer. */
static __always_inline void change_fragment_id(struct __sk_buff *skb, int is6, __be32 old, __be32 id)
{
	if (old == id)
		return;
	if (is6) {
		bpf_skb_store_bytes(skb, IP_AT + 40 + 4, &id, sizeof(id), BPF_F_RECOMPUTE_CSUM);
		return;
	}
	__be16 before = old, next = id;
	bpf_l3_csum_replace(skb, IP_AT + 10, before, next, sizeof(next));
	bpf_skb_store_bytes(skb, IP_AT + 4, &next, sizeof(next), 0);
}

/* Notes what became of the first fragment of the draft's datagram. */
static __always_inline void note_first_fragment(struct __sk_buff *skb, int is6, struct evk_fragments_draft *draft,
						const struct evk_udp_draft *udp, int answer, int is_of_client,
						__u64 now)
{
	struct evk_fragments *value = &draft->value;
	if (udp->part == LATE_PART) {
		/* The system would keep the others, and take the next answer with their number for the same one. */
		__builtin_memset(value, 0, sizeof(*value));
		value->ns = now;
		value->outcome = LATE_ANSWERS;
		bpf_map_update_elem(&evk_fragments, &draft->key, value, BPF_ANY);
		return;
	}
	if (answer != TC_ACT_REDIRECT) {
		/* The number may be that of a datagram before. */
		bpf_map_delete_elem(&evk_fragments, &draft->key);
		return;
	}
	__builtin_memset(value, 0, sizeof(*value));
	value->ns = now;
	value->from = udp->from.ip;
	value->to = udp->to.ip;
	value->hop = udp->hop;
	value->outcome = is_of_client ? FORWARDED_TO_MEMBER : FORWARDED_TO_CLIENT;
	value->id = draft->key.id;
	/* Behind an address of the balancer are many senders, whose identifications may be the same. */
	if (!is_equal(&value->from, &draft->key.from))
		value->id = is6 ? bpf_get_prandom_u32() : bpf_get_prandom_u32() & 0xffff;
	change_fragment_id(skb, is6, draft->key.id, value->id);
	bpf_map_update_elem(&evk_fragments, &draft->key, value, BPF_ANY);
}

/* Sends a fragment that is not the first one where the first one has gone. */
static __always_inline int follow_first_fragment(struct __sk_buff *skb, const struct headers *head,
						 struct evk_fragments_draft *draft, struct evk_udp_draft *udp,
						 __u64 now)
{
	struct evk_fragments *known = bpf_map_lookup_elem(&evk_fragments, &draft->key);
	if (!known || !is_under_way(known->ns, now)) {
		bpf_map_update_elem(&evk_passed_fragments, &draft->key, &now, BPF_ANY);
		return pass(PASSED_ODD);
	}
	__u32 outcome = known->outcome, id = known->id;
	if (outcome == LATE_ANSWERS)
		return drop_late(udp);
	__builtin_memset(&udp->from, 0, sizeof(udp->from));
	__builtin_memset(&udp->to, 0, sizeof(udp->to));
	udp->from.ip = known->from;
	udp->to.ip = known->to;
	udp->hop = known->hop;
	struct bpf_fib_lookup fib;
	if (find_way_for(skb, &fib, IPPROTO_UDP, &udp->from.ip, &udp->hop, head->tos) != FOUND)
		return drop();
	change_fragment_id(skb, head->is_ipv6, draft->key.id, id);
	return send_datagram(skb, &fib, outcome);
}
