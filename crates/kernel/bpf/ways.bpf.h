/* Ways of packets, kept for a moment: a packet needs no look-up of the route if one with the same addresses has just gone
 * the same way. The kernel sends to the neighbour and confirms it with each packet of tc; only the route, the interface
 * and its MTU may be as old as WAY_AGE. Native XDP takes the neighbour's hardware address from here, too. */

/* Questions whose answers a CPU keeps: each has one place, by its hash. */
#define WAYS_BITS 11
#define WAYS (1 << WAYS_BITS)

/* Time for which an answer is used, as `coarse` has it: a tenth of a second. */
#define WAY_AGE 95U

/* All that the answer depends on. */
struct evk_way_question {
	struct evk_ip from, to;
	__u32 interface; /* that the packet has come by */
	__u8 protocol;
	__u8 tos;
	__u8 is_xdp; /* asks for the neighbour, and compares with the MTU of the route */
	__u8 is_filled;
};

struct evk_kept_way {
	struct evk_way_question question;
	__u32 found_at; /* as `coarse` has it */
	__u32 interface;
	__u32 mtu;
	__u32 next[4]; /* the neighbour, as the kernel writes it */
	__u8 family;
	__u8 macs[2 * ETH_ALEN]; /* of the interface, and of the neighbour */
	__u8 zero[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WAYS);
	__type(key, __u32);
	__type(value, struct evk_kept_way);
} evk_kept_ways SEC(".maps");

/* The question of a packet: the stack has no room. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_way_question);
} evk_way_question SEC(".maps");

static __always_inline struct evk_way_question *find_question(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_way_question, &zero);
}

/* Finds the place of a question's answer on this CPU. */
static __always_inline struct evk_kept_way *find_place(const struct evk_way_question *question)
{
	__u64 hash = question->from.half[1] * 0x9e3779b97f4a7c15ULL + question->to.half[1];
	hash = hash * 0xbf58476d1ce4e5b9ULL + (question->from.half[0] ^ question->to.half[0]);
	hash ^= (__u64)question->interface << 40 | (__u64)question->protocol << 16 | question->tos << 1 |
		question->is_xdp;
	hash *= 0x94d049bb133111ebULL;
	__u32 at = hash >> (64 - WAYS_BITS);
	return bpf_map_lookup_elem(&evk_kept_ways, &at);
}

/* True if a place has the answer to a question, and the answer is new enough. */
static __always_inline int is_answer(const struct evk_kept_way *way, const struct evk_way_question *question, __u32 clock)
{
	const __u64 *a = (const void *)&way->question, *b = (const void *)question;
	return a[4] == b[4] && a[3] == b[3] && a[1] == b[1] && a[2] == b[2] && a[0] == b[0] &&
	       clock - way->found_at < WAY_AGE;
}

/* Keeps the answer to a question. */
static __always_inline void keep_way(struct evk_kept_way *way, const struct evk_way_question *question,
				     const struct bpf_fib_lookup *fib, __u32 clock)
{
	way->question = *question;
	way->found_at = clock;
	way->interface = fib->ifindex;
	way->mtu = fib->mtu_result;
	__builtin_memcpy(way->next, fib->ipv6_dst, sizeof(way->next));
	way->family = fib->family;
	__builtin_memcpy(way->macs, fib->smac, ETH_ALEN);
	__builtin_memcpy(way->macs + ETH_ALEN, fib->dmac, ETH_ALEN);
}

/* Fills in what a look-up would have found. */
static __always_inline void use_way(const struct evk_kept_way *way, struct bpf_fib_lookup *fib)
{
	fib->ifindex = way->interface;
	fib->family = way->family;
	__builtin_memcpy(fib->ipv6_dst, way->next, sizeof(way->next));
}

/* Makes the question for a packet of a protocol. */
static __always_inline void fill_question(struct evk_way_question *question, __u32 interface, __u8 protocol,
					  const struct evk_ip *from, const struct evk_ip *to, __u8 tos, int is_xdp)
{
	question->from = *from;
	question->to = *to;
	question->interface = interface;
	question->protocol = protocol;
	question->tos = tos;
	question->is_xdp = is_xdp;
	question->is_filled = 1;
}

/* Result of a look for a way to a packet's receiver. */
enum way { NO_WAY, FOUND, TOO_LARGE };

/* Makes the question for the way of a packet of a protocol that has come by an interface. */
static __always_inline void ask_way(struct bpf_fib_lookup *fib, __u32 interface, __u8 protocol, const struct evk_ip *from,
				    const struct evk_ip *to, __u8 tos)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->l4_protocol = protocol;
	fib->ifindex = interface;
	if (is_ipv6(to)) {
		fib->family = AF_INET6;
		fib->flowinfo = bpf_htonl((__u32)tos << 20);
		__builtin_memcpy(fib->ipv6_src, from, sizeof(*from));
		__builtin_memcpy(fib->ipv6_dst, to, sizeof(*to));
	} else {
		fib->family = AF_INET;
		fib->tos = tos;
		fib->ipv4_src = from->word[3];
		fib->ipv4_dst = to->word[3];
	}
}

/* Asks the kernel for the way of a packet, and keeps the answer. */
static __attribute__((noinline)) long look_up_way(struct __sk_buff *skb, struct bpf_fib_lookup *fib,
						  const struct evk_way_question *question, __u32 clock)
{
	ask_way(fib, question->interface, question->protocol, &question->from, &question->to, question->tos);
	long found = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return TOO_LARGE;
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NO_WAY;
	struct evk_kept_way *way = find_place(question);
	if (way)
		keep_way(way, question, fib, clock);
	return FOUND;
}

/* Finds the interface and the neighbour for a packet of a protocol. */
static __always_inline enum way find_way_for(struct __sk_buff *skb, struct bpf_fib_lookup *fib, __u8 protocol,
					     const struct evk_ip *from, const struct evk_ip *to, __u8 tos)
{
	__u32 clock = coarse(bpf_ktime_get_coarse_ns());
	struct evk_way_question *question = find_question();
	if (!question)
		return NO_WAY;
	fill_question(question, skb->ingress_ifindex, protocol, from, to, tos, 0);
	struct evk_kept_way *way = find_place(question);
	/* A packet that may be too large for the interface is for the kernel, which cuts several segments together. */
	if (way && is_answer(way, question, clock) && (skb->len <= way->mtu + ETH_HLEN || skb->gso_size)) {
		use_way(way, fib);
		return FOUND;
	}
	return look_up_way(skb, fib, question, clock);
}

/* The same for a packet of TCP. */
static __always_inline enum way find_way(struct __sk_buff *skb, struct bpf_fib_lookup *fib,
					 const struct evk_ip *from, const struct evk_ip *to, __u8 tos)
{
	return find_way_for(skb, fib, IPPROTO_TCP, from, to, tos);
}

/* True if the way that was found leads to the receiver without a router. */
static __always_inline int is_neighbour(const struct bpf_fib_lookup *fib, const struct evk_ip *to)
{
	if (!is_ipv6(to))
		return fib->family == AF_INET && fib->ipv4_dst == to->word[3];
	return fib->ipv6_dst[0] == to->word[0] && fib->ipv6_dst[1] == to->word[1] &&
	       fib->ipv6_dst[2] == to->word[2] && fib->ipv6_dst[3] == to->word[3];
}

/* Sends a packet to the neighbour that was found. */
static __always_inline int redirect(const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh next = { .nh_family = fib->family };
	__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}
