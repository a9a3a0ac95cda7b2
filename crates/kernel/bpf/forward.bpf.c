// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Forwards TCP connections between clients and members of groups (`forward = "kernel"`).
 *
 * One program at the ingress of each interface (tc). A client's SYN to a listener's address gets a
 * member by the terms that the balancer writes; later packets follow the connection's entry, and the
 * member's packets find their way back by a second entry (half NAT: members see the client's address).
 * All packets that the program does not take continue to the stack: the rule's listening socket serves
 * a connection that does not begin here. src/forward/layout.rs has the same structures. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define AF_INET 2
#define MAX_SEATS 4096	 /* members of all groups */
#define MAX_GROUPS 256	 /* groups */
#define GROUP_SEATS 64	 /* members of a group */
#define CONNECTIONS 262144

enum evk_form { FORM_PASS, FORM_SCORE, FORM_TURNS };

enum evk_flag {
	ESTABLISHED = 1, /* the member has accepted */
	ANSWERED = 2,	 /* the member's first byte was seen */
	CLIENT_FIN = 4,
	MEMBER_FIN = 8,
	CLOSED = 16, /* no longer in flight */
};

enum evk_event_kind { EVENT_BEGIN = 1, EVENT_ANSWER, EVENT_END };

enum evk_end { END_CLOSED, END_REFUSED, END_RESET, END_CLIENT_RESET };

struct evk_address {
	__u32 address;
	__u16 port;
	__u16 zero;
};

struct evk_listener {
	__u32 group;
};

struct evk_group {
	__u32 form;
	__u32 growth; /* cost of each further connection, in 1/256 of the first */
	__u32 count;
	__u32 seats[GROUP_SEATS];
};

/* Written by the balancer. */
struct evk_terms {
	__u64 owner; /* hash of the group's name */
	__u32 address;
	__u16 port;
	__u16 zero;
	__u32 base;   /* score of a connection to an idle member, or distance of its turns */
	__u32 others; /* connections that other processes and the proxy have there */
	__u32 room;   /* limit of connections here; 0: no new connections */
	__u32 pad;
};

/* Written here. */
struct evk_counts {
	__s64 in_flight;
	__u64 pass; /* form of turns: time of the next turn */
	__u64 picks;
	__u64 handshakes;
	__u64 handshake_ns;
	__u64 answers;
	__u64 answer_ns;
	__u64 refused;
	__u64 resets;
	__u64 closed;
	__u64 bytes_in;
	__u64 bytes_out;
};

/* Addresses of a connection: one side, and the other. */
struct evk_pair {
	__u32 from;
	__u32 to;
	__u16 from_port;
	__u16 to_port;
};

struct evk_there {
	__u32 member;
	__u16 port;
	__u16 zero;
	__u32 seat;
};

struct evk_back {
	__u64 began_ns;
	__u64 seen_ns;
	__u32 listener;
	__u16 port;
	__u16 zero;
	__u32 seat;
	__u32 flags;
	__u64 bytes_in;
	__u64 bytes_out;
};

struct evk_event {
	struct evk_pair pair; /* as in the table of the way back */
	__u32 seat;
	__u16 kind;
	__u16 end;
	__u64 began_ns;
	__u64 ns;
	__u64 bytes_in;
	__u64 bytes_out;
};

enum evk_outcome {
	FORWARDED_TO_MEMBER,
	FORWARDED_TO_CLIENT,
	PASSED_FORM,	/* the strategy's decisions cannot be made here */
	PASSED_NO_ROOM, /* no member may get a connection */
	PASSED_TABLE,	/* table full, or addresses in use */
	PASSED_ROUTE,	/* no route */
	PASSED_ODD,	/* fragments, options, wrong lengths */
	DROPPED,	/* of a known connection, but cannot be sent */
	OUTCOMES,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_address);
	__type(value, struct evk_listener);
} evk_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, struct evk_group);
} evk_groups SEC(".maps");

/* Time of the last turn of each group. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, __u64);
} evk_turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SEATS);
	__type(key, __u32);
	__type(value, struct evk_terms);
} evk_terms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SEATS);
	__type(key, __u32);
	__type(value, struct evk_counts);
} evk_counts SEC(".maps");

/* No LRU: an entry that the kernel removes would cut a connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_pair);
	__type(value, struct evk_there);
} evk_there SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_pair);
	__type(value, struct evk_back);
} evk_back SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} evk_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} evk_outcomes SEC(".maps");

static __always_inline void count(__u32 outcome)
{
	__u64 *counter = bpf_map_lookup_elem(&evk_outcomes, &outcome);
	if (counter)
		*counter += 1;
}

static __always_inline int pass(__u32 outcome)
{
	count(outcome);
	return TC_ACT_OK;
}

static __always_inline void tell(__u16 kind, __u16 end, const struct evk_pair *pair,
				 const struct evk_back *back, __u64 now)
{
	/* If the buffer is full, the balancer finds the difference in the table. */
	struct evk_event *event = bpf_ringbuf_reserve(&evk_events, sizeof(*event), 0);
	if (!event)
		return;
	event->pair = *pair;
	event->seat = back->seat;
	event->kind = kind;
	event->end = end;
	event->began_ns = back->began_ns;
	event->ns = now;
	event->bytes_in = back->bytes_in;
	event->bytes_out = back->bytes_out;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Ends a connection once. The entry stays until no packet has come for a while. */
static __always_inline void end_connection(const struct evk_pair *pair, struct evk_back *back,
					   __u16 end, __u64 now)
{
	if (__sync_fetch_and_or(&back->flags, CLOSED) & CLOSED)
		return;
	__u32 seat = back->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->in_flight, -1);
		__sync_fetch_and_add(&counts->bytes_in, back->bytes_in);
		__sync_fetch_and_add(&counts->bytes_out, back->bytes_out);
		if (end == END_REFUSED)
			__sync_fetch_and_add(&counts->refused, 1);
		else if (end == END_RESET)
			__sync_fetch_and_add(&counts->resets, 1);
		else
			__sync_fetch_and_add(&counts->closed, 1);
	}
	tell(EVENT_END, end, pair, back, now);
}

#define NO_SCORE (~0ULL)

/* The best seat so far. In memory, and not on the stack: the verifier would follow each value that it
 * may have through all steps of the loop. */
struct evk_best {
	__u64 score;
	__u32 seat;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_best);
} evk_best SEC(".maps");

/* Score of a seat, the lowest wins; NO_SCORE if the member may not get a connection. A function of its
 * own, which the verifier checks once: inlined, its branches would multiply in the loop below. */
__attribute__((noinline)) __u64 evk_score(__u32 seat, __u32 form, __u32 growth, __u64 last)
{
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!terms || !counts)
		return NO_SCORE;
	__s64 own = counts->in_flight;
	__u64 here = own > 0 ? own : 0;
	if (here >= terms->room)
		return NO_SCORE;
	if (form == FORM_TURNS)
		return counts->pass > last ? counts->pass : last;
	__u64 busy = here + terms->others;
	if (busy > 0xffffff)
		busy = 0xffffff;
	/* The first connection costs 1, the second 1, each further one `growth`. */
	__u64 places = 256;
	if (busy > 0)
		places += 256 + (busy - 1) * growth;
	return places >> 32 ? NO_SCORE - 1 : terms->base * places;
}

/* Chooses a seat: `evenkeel_core::terms::choose` is the same function. Returns -1 if no member has
 * room, -2 if the form is not known. */
__attribute__((noinline)) int evk_choose_seat(__u32 number)
{
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	__u64 *turn = bpf_map_lookup_elem(&evk_turns, &number);
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!group || !turn || !best)
		return -2;
	__u32 form = group->form, total = group->count, growth = group->growth;
	if ((form != FORM_SCORE && form != FORM_TURNS) || total > GROUP_SEATS)
		return -2;
	if (total == 0)
		return -1;
	__u64 last = *turn;
	__u32 start = bpf_get_prandom_u32() % total;
	best->score = NO_SCORE;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		if (i >= total)
			break;
		__u32 seat = group->seats[(start + i) % total & (GROUP_SEATS - 1)];
		__u64 score = evk_score(seat, form, growth, last);
		if (score < best->score) {
			best->score = score;
			best->seat = seat;
		}
	}
	if (best->score == NO_SCORE)
		return -1;
	__u32 seat = best->seat;
	if (form == FORM_TURNS) {
		struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
		struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
		if (terms && counts) {
			counts->pass = best->score + terms->base;
			*turn = best->score;
		}
	}
	return seat;
}

/* Finds the interface and the neighbour for a packet. */
static __always_inline int find_route(struct __sk_buff *skb, struct bpf_fib_lookup *fib, __u32 from,
				      __u32 to, __u8 tos)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = AF_INET;
	fib->l4_protocol = IPPROTO_TCP;
	fib->ifindex = skb->ingress_ifindex;
	fib->tos = tos;
	fib->ipv4_src = from;
	fib->ipv4_dst = to;
	long found = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH;
}

#define IP_AT ETH_HLEN
#define TCP_AT (ETH_HLEN + 20)
#define HEADERS (ETH_HLEN + 20 + 20)

/* Changes an address and a port, and sends the packet on. `is_source`: those of the sender. */
static __always_inline int send(struct __sk_buff *skb, const struct bpf_fib_lookup *fib, int is_source,
				__u32 address, __u16 port)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + HEADERS > end)
		return TC_ACT_SHOT;
	struct iphdr *ip = data + IP_AT;
	struct tcphdr *tcp = data + TCP_AT;
	__u32 old = is_source ? ip->saddr : ip->daddr;
	__u16 old_port = is_source ? tcp->source : tcp->dest;
	if (ip->ttl <= 1)
		return TC_ACT_SHOT;
	/* The lifetime and the protocol share a word of the checksum. */
	__u16 before = bpf_htons(ip->ttl << 8 | ip->protocol);
	__u16 after = bpf_htons((ip->ttl - 1) << 8 | ip->protocol);
	ip->ttl -= 1;
	if (is_source) {
		ip->saddr = address;
		tcp->source = port;
	} else {
		ip->daddr = address;
		tcp->dest = port;
	}
	bpf_l3_csum_replace(skb, IP_AT + 10, before, after, 2);
	bpf_l3_csum_replace(skb, IP_AT + 10, old, address, 4);
	bpf_l4_csum_replace(skb, TCP_AT + 16, old, address, BPF_F_PSEUDO_HDR | 4);
	bpf_l4_csum_replace(skb, TCP_AT + 16, old_port, port, 2);
	struct bpf_redir_neigh next = { .nh_family = AF_INET, .ipv4_nh = fib->ipv4_dst };
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

static __always_inline int drop(void)
{
	count(DROPPED);
	return TC_ACT_SHOT;
}

/* What is needed of a packet's headers. */
struct headers {
	struct evk_pair pair;
	__u32 payload;
	__u8 tos;
	__u8 syn, ack, fin, rst;
};

static __always_inline int begin(struct __sk_buff *skb, const struct headers *head, __u64 now)
{
	struct evk_address to = { .address = head->pair.to, .port = head->pair.to_port };
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &to);
	if (!listener)
		return TC_ACT_OK;
	__u32 number = listener->group;
	int best = evk_choose_seat(number);
	if (best < 0)
		return pass(best == -2 ? PASSED_FORM : PASSED_NO_ROOM);
	__u32 seat = best;
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!terms || !counts)
		return pass(PASSED_FORM);
	struct evk_there there = { .member = terms->address, .port = terms->port, .seat = seat };
	struct bpf_fib_lookup fib;
	if (!find_route(skb, &fib, head->pair.from, there.member, head->tos))
		return pass(PASSED_ROUTE);
	struct evk_pair back_pair = {
		.from = there.member,
		.to = head->pair.from,
		.from_port = there.port,
		.to_port = head->pair.from_port,
	};
	struct evk_back *old = bpf_map_lookup_elem(&evk_back, &back_pair);
	if (old && !(old->flags & CLOSED))
		return pass(PASSED_TABLE); /* the client's port, by another listener */
	struct evk_back back = {
		.began_ns = now,
		.seen_ns = now,
		.listener = head->pair.to,
		.port = head->pair.to_port,
		.seat = seat,
	};
	if (bpf_map_update_elem(&evk_back, &back_pair, &back, BPF_ANY))
		return pass(PASSED_TABLE);
	if (bpf_map_update_elem(&evk_there, &head->pair, &there, BPF_ANY)) {
		bpf_map_delete_elem(&evk_back, &back_pair);
		return pass(PASSED_TABLE);
	}
	__sync_fetch_and_add(&counts->in_flight, 1);
	__sync_fetch_and_add(&counts->picks, 1);
	tell(EVENT_BEGIN, 0, &back_pair, &back, now);
	count(FORWARDED_TO_MEMBER);
	return send(skb, &fib, 0, there.member, there.port);
}

static __always_inline int to_member(struct __sk_buff *skb, const struct headers *head,
				     struct evk_there *there, __u64 now)
{
	struct evk_pair back_pair = {
		.from = there->member,
		.to = head->pair.from,
		.from_port = there->port,
		.to_port = head->pair.from_port,
	};
	struct evk_back *back = bpf_map_lookup_elem(&evk_back, &back_pair);
	int begins = head->syn && !head->ack;
	if (!back || (begins && back->flags & CLOSED)) {
		/* Over: the port is used again. */
		bpf_map_delete_elem(&evk_there, &head->pair);
		return begins ? begin(skb, head, now) : TC_ACT_OK;
	}
	__u32 member = there->member;
	__u16 port = there->port;
	struct bpf_fib_lookup fib;
	if (!find_route(skb, &fib, head->pair.from, member, head->tos))
		return drop();
	back->seen_ns = now;
	__sync_fetch_and_add(&back->bytes_in, head->payload);
	if (head->rst) {
		end_connection(&back_pair, back, END_CLIENT_RESET, now);
	} else if (head->fin) {
		if (__sync_fetch_and_or(&back->flags, CLIENT_FIN) & MEMBER_FIN)
			end_connection(&back_pair, back, END_CLOSED, now);
	}
	count(FORWARDED_TO_MEMBER);
	return send(skb, &fib, 0, member, port);
}

static __always_inline int to_client(struct __sk_buff *skb, const struct headers *head,
				     struct evk_back *back, __u64 now)
{
	struct bpf_fib_lookup fib;
	__u32 listener = back->listener, seat = back->seat;
	__u16 port = back->port;
	if (!find_route(skb, &fib, listener, head->pair.to, head->tos))
		return drop();
	back->seen_ns = now;
	__sync_fetch_and_add(&back->bytes_out, head->payload);
	__u32 flags = back->flags;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	__u64 took = now - back->began_ns;
	if (head->rst) {
		__u16 end = !(flags & ESTABLISHED) ? END_REFUSED : END_RESET;
		end_connection(&head->pair, back, end, now);
	} else {
		if (head->syn && head->ack && !(flags & ESTABLISHED) &&
		    !(__sync_fetch_and_or(&back->flags, ESTABLISHED) & ESTABLISHED) && counts) {
			__sync_fetch_and_add(&counts->handshakes, 1);
			__sync_fetch_and_add(&counts->handshake_ns, took);
		}
		if (head->payload && !head->syn && !(flags & ANSWERED) &&
		    !(__sync_fetch_and_or(&back->flags, ANSWERED) & ANSWERED) && counts) {
			__sync_fetch_and_add(&counts->answers, 1);
			__sync_fetch_and_add(&counts->answer_ns, took);
			tell(EVENT_ANSWER, 0, &head->pair, back, now);
		}
		if (head->fin && __sync_fetch_and_or(&back->flags, MEMBER_FIN) & CLIENT_FIN)
			end_connection(&head->pair, back, END_CLOSED, now);
	}
	count(FORWARDED_TO_CLIENT);
	return send(skb, &fib, 1, listener, port);
}

SEC("tc")
int evk_forward(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present)
		return TC_ACT_OK;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + HEADERS > end) {
		if (skb->len < HEADERS || bpf_skb_pull_data(skb, HEADERS))
			return TC_ACT_OK;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + HEADERS > end)
			return TC_ACT_OK;
	}
	struct iphdr *ip = data + IP_AT;
	if (ip->protocol != IPPROTO_TCP || ip->version != 4)
		return TC_ACT_OK;
	/* Ports are elsewhere, or not there: the stack knows what to do. */
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return pass(PASSED_ODD);
	struct tcphdr *tcp = data + TCP_AT;
	__u32 total = bpf_ntohs(ip->tot_len), offset = tcp->doff * 4;
	/* A large packet of several segments may say 0. */
	if (total == 0)
		total = skb->len - ETH_HLEN;
	if (offset < 20 || total < 20 + offset || total > skb->len - ETH_HLEN)
		return pass(PASSED_ODD);
	struct headers head = {
		.pair = {
			.from = ip->saddr,
			.to = ip->daddr,
			.from_port = tcp->source,
			.to_port = tcp->dest,
		},
		.payload = total - 20 - offset,
		.tos = ip->tos,
		.syn = tcp->syn,
		.ack = tcp->ack,
		.fin = tcp->fin,
		.rst = tcp->rst,
	};
	if (ip->ttl <= 1 || (head.syn && (head.fin || head.rst)))
		return TC_ACT_OK;
	__u64 now = bpf_ktime_get_ns();
	struct evk_there *there = bpf_map_lookup_elem(&evk_there, &head.pair);
	if (there)
		return to_member(skb, &head, there, now);
	struct evk_back *back = bpf_map_lookup_elem(&evk_back, &head.pair);
	if (back)
		return to_client(skb, &head, back, now);
	if (head.syn && !head.ack)
		return begin(skb, &head, now);
	return TC_ACT_OK;
}

/* Chooses a seat of a group without a packet: for tests. */
struct evk_question {
	__u32 group;
	__u32 zero;
};

SEC("syscall")
int evk_choose(struct evk_question *question)
{
	return evk_choose_seat(question->group);
}

/* Removes a connection that is over, or that was silent for too long. */
struct evk_removal {
	struct evk_pair pair;
	__u32 zero;
	__u64 seen_ns; /* not if a packet has come since */
};

SEC("syscall")
int evk_remove(struct evk_removal *removal)
{
	struct evk_pair pair = removal->pair;
	struct evk_back *back = bpf_map_lookup_elem(&evk_back, &pair);
	if (!back || back->seen_ns != removal->seen_ns)
		return 0;
	struct evk_pair there = {
		.from = pair.to,
		.to = back->listener,
		.from_port = pair.to_port,
		.to_port = back->port,
	};
	__u16 end = back->flags & ESTABLISHED ? END_CLOSED : END_REFUSED;
	end_connection(&pair, back, end, bpf_ktime_get_ns());
	bpf_map_delete_elem(&evk_there, &there);
	bpf_map_delete_elem(&evk_back, &pair);
	return 1;
}

/* Corrects a member's number of connections. */
struct evk_correction {
	__u32 seat;
	__s32 by;
};

SEC("syscall")
int evk_correct(struct evk_correction *correction)
{
	__u32 seat = correction->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts)
		__sync_fetch_and_add(&counts->in_flight, correction->by);
	return 0;
}
