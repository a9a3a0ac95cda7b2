// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Forwards TCP connections between clients and members of groups (`forward = "kernel"`).
 *
 * One program at the ingress of each interface (tc). A client's SYN to a listener's address gets a
 * member by the terms that the balancer writes; later packets of both sides follow the connection's entry,
 * which they find by the client's address and port (half NAT: members see the client's address).
 * All packets that the program does not take continue to the next filter of the interface, which may be this program
 * in the version of a process before, and to the stack: the rule's listening socket serves a connection that does not
 * begin here. src/forward/layout.rs has the same structures. */
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
#define CONNECTIONS 65536 /* the loader sets the size of the tables */
#define MAX_RETRIES 10 /* members that a connection is refused by, at most, before one accepts */
#define OPTIONS 40     /* bytes of TCP options, at most */

/* Time after which a SYN that comes again is no copy that the network has made. */
#define AGAIN_NS 200000000ULL

enum evk_form { FORM_PASS, FORM_SCORE, FORM_TURNS };

enum evk_flag {
	ESTABLISHED = 1, /* the member has accepted */
	ANSWERED = 2,	 /* the member's first byte was seen */
	CLIENT_FIN = 4,
	MEMBER_FIN = 8,
	CLOSED = 16, /* no longer in flight */
};

enum evk_event_kind { EVENT_BEGIN = 1, EVENT_ANSWER, EVENT_END, EVENT_ACCEPT };

enum evk_end { END_CLOSED, END_REFUSED, END_RESET, END_CLIENT_RESET };

struct evk_address {
	__u32 address;
	__u16 port;
	__u16 zero;
};

struct evk_listener {
	__u32 group;
	__u32 retries; /* other members that a connection may go to if one does not accept */
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

/* Addresses of a packet. */
struct evk_pair {
	__u32 from;
	__u32 to;
	__u16 from_port;
	__u16 to_port;
};

/* Sequence numbers of a side, of packets that this side can have sent. */
struct evk_side {
	__u32 next;  /* behind all that the side has sent */
	__u32 acked; /* what the side has last acknowledged of the other one */
};

/* A connection, by the client's address and port. There may be a million: an element of the table with key and
 * value takes 128 bytes of memory if the value has 64 at most. */
struct evk_connection {
	/* The first three are the same in all layouts: the next version ends what this one has left. */
	__u64 began_ns;
	__u32 seen; /* time of the last packet, as `coarse` has it */
	__u32 flags;
	__u32 listener;
	__u32 member;
	__u16 listener_port;
	__u16 member_port;
	__u16 seat;
	__u16 zero;
	__u64 bytes_in;
	__u64 bytes_out;
	struct evk_side client_side;
	struct evk_side member_side;
};

/* What another member needs of a client's SYN, until a member has accepted. */
struct evk_syn {
	__u32 sequence;
	__u16 window;
	__u8 tos;
	__u8 tries;
	__u16 tried[MAX_RETRIES]; /* seats of members before */
	__u32 options_length;
	__u8 options[OPTIONS];
};

struct evk_event {
	struct evk_pair pair; /* of the member's packets */
	__u16 seat;
	__u16 listener_port;
	__u16 kind;
	__u16 end;
	__u32 listener;
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
	RETRIED,	/* SYNs for another member */
	STRAY_RESETS,	/* RSTs that do not end the connection */
	LOST_EVENTS,	/* no room for an event */
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
	__type(key, struct evk_address);
	__type(value, struct evk_connection);
} evk_connections SEC(".maps");

/* By the client, too. A connection without an entry here stays with its member. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_address);
	__type(value, struct evk_syn);
} evk_syns SEC(".maps");

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
	return TC_ACT_UNSPEC;
}

/* Time in units of 2^20 ns: about a millisecond. */
static __always_inline __u32 coarse(__u64 ns)
{
	return ns >> 20;
}

static __always_inline void tell(__u16 kind, __u16 end, const struct evk_address *client,
				 const struct evk_connection *connection, __u64 now)
{
	/* If the buffer is full, the balancer finds the difference in the table. */
	struct evk_event *event = bpf_ringbuf_reserve(&evk_events, sizeof(*event), 0);
	if (!event) {
		count(LOST_EVENTS);
		return;
	}
	event->pair.from = connection->member;
	event->pair.to = client->address;
	event->pair.from_port = connection->member_port;
	event->pair.to_port = client->port;
	event->seat = connection->seat;
	event->listener = connection->listener;
	event->listener_port = connection->listener_port;
	event->kind = kind;
	event->end = end;
	event->began_ns = connection->began_ns;
	event->ns = now;
	event->bytes_in = connection->bytes_in;
	event->bytes_out = connection->bytes_out;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Ends a connection once: 0 if it has ended before. The entry stays until no packet has come for a while. */
static __always_inline int end_connection(const struct evk_address *client,
					  struct evk_connection *connection, __u16 end, __u64 now)
{
	if (__sync_fetch_and_or(&connection->flags, CLOSED) & CLOSED)
		return 0;
	__u32 seat = connection->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->in_flight, -1);
		__sync_fetch_and_add(&counts->bytes_in, connection->bytes_in);
		__sync_fetch_and_add(&counts->bytes_out, connection->bytes_out);
		if (end == END_REFUSED)
			__sync_fetch_and_add(&counts->refused, 1);
		else if (end == END_RESET)
			__sync_fetch_and_add(&counts->resets, 1);
		else
			__sync_fetch_and_add(&counts->closed, 1);
	}
	tell(EVENT_END, end, client, connection, now);
	return 1;
}

/* Forgets the SYN of a connection that was not accepted. */
static __always_inline void forget_syn(const struct evk_address *client,
				       const struct evk_connection *connection)
{
	if (!(connection->flags & ESTABLISHED))
		bpf_map_delete_elem(&evk_syns, client);
}

#define NO_SCORE (~0ULL)

/* The best seat so far, and the seats that are excluded. In memory, and not on the stack: the verifier
 * would follow each value that it may have through all steps of the loop. */
struct evk_best {
	__u64 score;
	__u32 seat;
	__u32 tries;
	__u16 tried[MAX_RETRIES];
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
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!best || !terms || !counts)
		return NO_SCORE;
	for (__u32 i = 0; i < MAX_RETRIES; i++) {
		if (i >= best->tries)
			break;
		if (best->tried[i] == seat)
			return NO_SCORE;
	}
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

/* Chooses a seat that is not excluded: `evenkeel_core::terms::choose` is the same function. Returns -1 if no
 * member has room, -2 if the form is not known. */
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
	__u32 options_length;
	__u32 sequence, answered;
	__u16 window;
	__u8 tos;
	__u8 syn, ack, fin, rst;
};

/* Entries before they are in the tables. */
struct evk_draft {
	struct evk_connection connection;
	struct evk_syn syn;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_draft);
} evk_draft SEC(".maps");

static __always_inline struct evk_draft *find_draft(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_draft, &zero);
}

/* Chooses a member for a connection to the draft's listener, finds the route, and fills in the rest of the
 * draft. Returns an outcome if there is no member. */
static __always_inline int prepare(struct __sk_buff *skb, const struct evk_address *client, __u32 group,
				   struct evk_draft *draft, struct bpf_fib_lookup *fib, __u64 now)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!best)
		return PASSED_FORM;
	best->tries = draft->syn.tries;
	__builtin_memcpy(best->tried, draft->syn.tried, sizeof(best->tried));
	int chosen = evk_choose_seat(group);
	if (chosen < 0)
		return chosen == -2 ? PASSED_FORM : PASSED_NO_ROOM;
	__u32 seat = chosen;
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	if (!terms)
		return PASSED_FORM;
	struct evk_connection *connection = &draft->connection;
	connection->member = terms->address;
	connection->member_port = terms->port;
	connection->seat = seat;
	if (!find_route(skb, fib, client->address, connection->member, draft->syn.tos))
		return PASSED_ROUTE;
	connection->began_ns = now;
	connection->seen = coarse(now);
	connection->flags = 0;
	connection->zero = 0;
	connection->bytes_in = 0;
	connection->bytes_out = 0;
	/* Until the member accepts, `acked` is the least that an acceptance acknowledges. */
	connection->client_side.next = draft->syn.sequence + 1;
	connection->client_side.acked = draft->syn.sequence + 1;
	connection->member_side.next = 0;
	connection->member_side.acked = 0;
	return 0;
}

/* Enters a connection into the tables, and counts it. Returns -1 if there is no place. */
static __always_inline int enter(const struct evk_address *client, const struct evk_draft *draft,
				 __u32 retries, __u64 how, __u64 now)
{
	if (bpf_map_update_elem(&evk_connections, client, &draft->connection, how))
		return -1;
	/* Without room the connection stays with its member. */
	if (draft->syn.tries >= retries || bpf_map_update_elem(&evk_syns, client, &draft->syn, BPF_ANY))
		bpf_map_delete_elem(&evk_syns, client);
	__u32 seat = draft->connection.seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->in_flight, 1);
		__sync_fetch_and_add(&counts->picks, 1);
	}
	tell(EVENT_BEGIN, 0, client, &draft->connection, now);
	return 0;
}

/* Keeps what another member needs of a SYN. Returns -1 if the packet has less than it says. */
static __always_inline int keep_syn(struct __sk_buff *skb, const struct headers *head, struct evk_syn *syn)
{
	syn->sequence = head->sequence;
	syn->window = head->window;
	syn->tos = head->tos;
	__u32 length = head->options_length;
	if (length > OPTIONS)
		return -1;
	syn->options_length = length;
	if (length && bpf_skb_load_bytes(skb, HEADERS, syn->options, length))
		return -1;
	return 0;
}

/* Deletes the entry of a client's connection that is over: the port is used again. */
static __always_inline void clear_closed(const struct evk_address *client)
{
	struct evk_connection *old = bpf_map_lookup_elem(&evk_connections, client);
	if (old && old->flags & CLOSED)
		bpf_map_delete_elem(&evk_connections, client);
}

static __always_inline int begin(struct __sk_buff *skb, const struct headers *head,
				 const struct evk_address *client, __u64 now)
{
	struct evk_address to = { .address = head->pair.to, .port = head->pair.to_port };
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &to);
	struct evk_draft *draft = find_draft();
	if (!listener || !draft)
		return TC_ACT_UNSPEC;
	draft->syn.tries = 0;
	if (keep_syn(skb, head, &draft->syn))
		return TC_ACT_UNSPEC;
	draft->connection.listener = to.address;
	draft->connection.listener_port = to.port;
	struct bpf_fib_lookup fib;
	int outcome = prepare(skb, client, listener->group, draft, &fib, now);
	if (outcome)
		return pass(outcome);
	/* A SYN may have data, which the member need not take. */
	draft->connection.client_side.next += head->payload;
	clear_closed(client);
	/* The client may have a connection to another listener from this port. */
	if (enter(client, draft, listener->retries, BPF_NOEXIST, now))
		return pass(PASSED_TABLE);
	count(FORWARDED_TO_MEMBER);
	return send(skb, &fib, 0, draft->connection.member, draft->connection.member_port);
}

/* Leads a connection that its member does not accept to another member, which the draft then has. `grows`: the
 * packet gets the length of the client's SYN. Returns -1 if the connection cannot go to another one. */
static __always_inline int retry(struct __sk_buff *skb, const struct evk_address *client,
				 struct evk_connection *connection, struct evk_draft *draft, int grows,
				 struct bpf_fib_lookup *fib, __u64 now)
{
	struct evk_address to = { .address = connection->listener, .port = connection->listener_port };
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &to);
	struct evk_syn *syn = bpf_map_lookup_elem(&evk_syns, client);
	if (!listener || !syn)
		return -1;
	__u32 tries = syn->tries, retries = listener->retries;
	if (tries >= retries || tries >= MAX_RETRIES)
		return -1;
	draft->syn = *syn;
	draft->syn.tried[tries] = connection->seat;
	draft->syn.tries = tries + 1;
	draft->connection.listener = to.address;
	draft->connection.listener_port = to.port;
	if (prepare(skb, client, listener->group, draft, fib, now))
		return -1;
	__u32 length = draft->syn.options_length;
	if (grows && (length > OPTIONS || bpf_skb_change_tail(skb, HEADERS + length, 0)))
		return -1;
	/* Another CPU may do the same. */
	if (!end_connection(client, connection, END_REFUSED, now) ||
	    enter(client, draft, retries, BPF_ANY, now))
		return -1;
	count(RETRIED);
	return 0;
}

/* Makes the client's SYN for the draft's member of a RST, which has room for it. The checksums are changed
 * and not computed, as a part may be left to the interface. */
static __always_inline int send_syn(struct __sk_buff *skb, const struct bpf_fib_lookup *fib,
				    const struct evk_address *client, const struct evk_draft *draft)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + HEADERS > end)
		return TC_ACT_SHOT;
	__u32 length = draft->syn.options_length;
	if (length > OPTIONS)
		return TC_ACT_SHOT;
	struct iphdr *ip = data + IP_AT;
	struct tcphdr *tcp = data + TCP_AT;
	struct {
		__be32 from, to, length;
	} old_pseudo = { ip->saddr, ip->daddr, bpf_htonl(20) },
	  pseudo = { client->address, draft->connection.member, bpf_htonl(20 + length) };
	struct tcphdr old = *tcp;
	struct tcphdr syn = {
		.source = client->port,
		.dest = draft->connection.member_port,
		.seq = bpf_htonl(draft->syn.sequence),
		.doff = 5 + length / 4,
		.syn = 1,
		.window = bpf_htons(draft->syn.window),
		.check = old.check,
	};
	ip->saddr = client->address;
	ip->daddr = draft->connection.member;
	ip->tos = draft->syn.tos;
	ip->tot_len = bpf_htons(40 + length);
	ip->ttl -= 1;
	ip->check = 0;
	__u32 sum = bpf_csum_diff(0, 0, (void *)ip, 20, 0);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	*tcp = syn;
	__s64 change = bpf_csum_diff((void *)&old, sizeof(old), (void *)&syn, sizeof(syn), 0);
	if (length) {
		change = bpf_csum_diff(0, 0, (void *)draft->syn.options, length, change);
		if (bpf_skb_store_bytes(skb, HEADERS, draft->syn.options, length, 0))
			return TC_ACT_SHOT;
	}
	__s64 pseudo_change = bpf_csum_diff((void *)&old_pseudo, sizeof(old_pseudo), (void *)&pseudo,
					    sizeof(pseudo), 0);
	bpf_l4_csum_replace(skb, TCP_AT + 16, 0, change, 0);
	bpf_l4_csum_replace(skb, TCP_AT + 16, 0, pseudo_change, BPF_F_PSEUDO_HDR);
	count(FORWARDED_TO_MEMBER);
	struct bpf_redir_neigh next = { .nh_family = AF_INET, .ipv4_nh = fib->ipv4_dst };
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

/* Largest window of TCP. */
#define MAX_WINDOW (1U << 30)

/* Distance by which packets may overtake each other, in bytes of the other side. */
#define OVERTAKEN (1U << 16)

/* Follows the sequence numbers of a packet that is not a RST. Returns 0 if the side cannot have sent the packet, as it
 * acknowledges what was not sent, or what was acknowledged before: a stranger must guess these numbers. Late copies
 * count neither. A packet that others have overtaken counts if it is the last one of its side. */
static __always_inline int follow(const struct headers *head, struct evk_side *side,
				  const struct evk_side *other)
{
	if (!head->ack)
		return 0;
	__u32 end = head->sequence + head->payload + head->syn + head->fin;
	__s32 behind = end - side->next;
	if (head->answered - side->acked > other->next - side->acked)
		return behind == 0 && side->acked - head->answered <= OVERTAKEN;
	if (end - other->acked > MAX_WINDOW)
		return 0;
	side->acked = head->answered;
	if (behind > 0)
		side->next = end;
	return behind >= 0;
}

/* True if a RST of a side ends an established connection: it has the number that the other side waits for, or the next
 * one of its side, as not all may have been acknowledged. The receiver answers a RST with another number within its
 * window with a challenge, and drops the others (RFC 5961, section 3.2). */
static __always_inline int is_valid_reset(const struct headers *head, const struct evk_side *side,
					  const struct evk_side *other)
{
	return head->sequence == other->acked || head->sequence == side->next;
}

static __always_inline int to_member(struct __sk_buff *skb, const struct headers *head,
				     const struct evk_address *client,
				     struct evk_connection *connection, __u64 now)
{
	int begins = head->syn && !head->ack;
	struct bpf_fib_lookup fib;
	/* A SYN with another number soon after the first one is a stranger's. */
	if (begins && !(connection->flags & ESTABLISHED) && now >= connection->began_ns + AGAIN_NS) {
		struct evk_draft *draft = find_draft();
		struct evk_syn *syn = bpf_map_lookup_elem(&evk_syns, client);
		if (head->sequence + 1 != connection->client_side.acked) {
			connection->client_side.acked = head->sequence + 1;
			connection->client_side.next = head->sequence + 1 + head->payload;
			if (syn && keep_syn(skb, head, syn))
				return drop();
		} else if (draft && !retry(skb, client, connection, draft, 0, &fib, now)) {
			count(FORWARDED_TO_MEMBER);
			return send(skb, &fib, 0, draft->connection.member,
				    draft->connection.member_port);
		}
	}
	__u32 member = connection->member;
	__u16 port = connection->member_port;
	if (!find_route(skb, &fib, client->address, member, head->tos))
		return drop();
	connection->seen = coarse(now);
	__sync_fetch_and_add(&connection->bytes_in, head->payload);
	struct evk_side *side = &connection->client_side, *other = &connection->member_side;
	if (head->rst) {
		if (connection->flags & ESTABLISHED ? is_valid_reset(head, side, other) :
						      head->sequence == side->next) {
			forget_syn(client, connection);
			end_connection(client, connection, END_CLIENT_RESET, now);
		} else {
			count(STRAY_RESETS);
		}
	} else if (connection->flags & ESTABLISHED) {
		int is_new = follow(head, side, other);
		if (head->fin && is_new &&
		    __sync_fetch_and_or(&connection->flags, CLIENT_FIN) & MEMBER_FIN)
			end_connection(client, connection, END_CLOSED, now);
	}
	count(FORWARDED_TO_MEMBER);
	return send(skb, &fib, 0, member, port);
}

static __always_inline int to_client(struct __sk_buff *skb, const struct headers *head,
				     const struct evk_address *client,
				     struct evk_connection *connection, __u64 now)
{
	struct bpf_fib_lookup fib;
	__u32 listener = connection->listener, seat = connection->seat;
	__u16 port = connection->listener_port;
	/* Only a RST without more has a checksum of which the change is known. */
	if (head->rst && head->ack && !head->payload && !head->options_length &&
	    !(connection->flags & (ESTABLISHED | CLOSED)) && head->answered == connection->client_side.next) {
		struct evk_draft *draft = find_draft();
		if (draft && !retry(skb, client, connection, draft, 1, &fib, now))
			return send_syn(skb, &fib, client, draft);
	}
	if (!find_route(skb, &fib, listener, client->address, head->tos))
		return drop();
	connection->seen = coarse(now);
	__sync_fetch_and_add(&connection->bytes_out, head->payload);
	__u32 flags = connection->flags;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	__u64 took = now - connection->began_ns;
	struct evk_side *side = &connection->member_side, *other = &connection->client_side;
	if (head->rst) {
		if (!(flags & ESTABLISHED) && head->answered == other->next) {
			forget_syn(client, connection);
			end_connection(client, connection, END_REFUSED, now);
		} else if (flags & ESTABLISHED && is_valid_reset(head, side, other)) {
			end_connection(client, connection, END_RESET, now);
		} else {
			count(STRAY_RESETS);
		}
	} else {
		int is_new = flags & ESTABLISHED && follow(head, side, other);
		if (head->syn && head->ack && !(flags & ESTABLISHED) &&
		    head->answered - other->acked <= other->next - other->acked) {
			side->next = head->sequence + 1;
			side->acked = head->answered;
			other->acked = head->sequence + 1;
			is_new = 1;
		}
		if (is_new && head->syn &&
		    !(__sync_fetch_and_or(&connection->flags, ESTABLISHED) & ESTABLISHED)) {
			bpf_map_delete_elem(&evk_syns, client);
			if (counts) {
				__sync_fetch_and_add(&counts->handshakes, 1);
				__sync_fetch_and_add(&counts->handshake_ns, took);
			}
			tell(EVENT_ACCEPT, 0, client, connection, now);
		}
		if (head->payload && is_new && !head->syn && !(flags & ANSWERED) &&
		    !(__sync_fetch_and_or(&connection->flags, ANSWERED) & ANSWERED) && counts) {
			__sync_fetch_and_add(&counts->answers, 1);
			__sync_fetch_and_add(&counts->answer_ns, took);
			tell(EVENT_ANSWER, 0, client, connection, now);
		}
		if (head->fin && is_new &&
		    __sync_fetch_and_or(&connection->flags, MEMBER_FIN) & CLIENT_FIN)
			end_connection(client, connection, END_CLOSED, now);
	}
	count(FORWARDED_TO_CLIENT);
	return send(skb, &fib, 1, listener, port);
}

/* Finds the connection of a client's packet to a listener. */
static __always_inline struct evk_connection *find_of_client(const struct evk_address *client,
							     const struct evk_pair *pair)
{
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, client);
	if (!connection || connection->listener != pair->to || connection->listener_port != pair->to_port)
		return 0;
	return connection;
}

/* Finds the connection of a member's packet to a client. */
static __always_inline struct evk_connection *find_of_member(const struct evk_address *client,
							     const struct evk_pair *pair)
{
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, client);
	if (!connection || connection->member != pair->from || connection->member_port != pair->from_port)
		return 0;
	return connection;
}

SEC("tc")
int evk_forward(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present)
		return TC_ACT_UNSPEC;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + HEADERS > end) {
		if (skb->len < HEADERS || bpf_skb_pull_data(skb, HEADERS))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + HEADERS > end)
			return TC_ACT_UNSPEC;
	}
	struct iphdr *ip = data + IP_AT;
	if (ip->protocol != IPPROTO_TCP || ip->version != 4)
		return TC_ACT_UNSPEC;
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
		.options_length = offset - 20,
		.sequence = bpf_ntohl(tcp->seq),
		.answered = bpf_ntohl(tcp->ack_seq),
		.window = bpf_ntohs(tcp->window),
		.tos = ip->tos,
		.syn = tcp->syn,
		.ack = tcp->ack,
		.fin = tcp->fin,
		.rst = tcp->rst,
	};
	if (ip->ttl <= 1 || (head.syn && (head.fin || head.rst)))
		return TC_ACT_UNSPEC;
	__u64 now = bpf_ktime_get_ns();
	struct evk_address from = { .address = head.pair.from, .port = head.pair.from_port };
	struct evk_address to = { .address = head.pair.to, .port = head.pair.to_port };
	int begins = head.syn && !head.ack;
	struct evk_connection *connection = find_of_client(&from, &head.pair);
	if (connection && !(begins && connection->flags & CLOSED))
		return to_member(skb, &head, &from, connection, now);
	if (!connection) {
		connection = find_of_member(&to, &head.pair);
		if (connection)
			return to_client(skb, &head, &to, connection, now);
	}
	return begins ? begin(skb, &head, &from, now) : TC_ACT_UNSPEC;
}

/* Chooses a seat of a group without a packet: for tests. */
struct evk_question {
	__u32 group;
	__u32 zero;
};

SEC("syscall")
int evk_choose(struct evk_question *question)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (best)
		best->tries = 0;
	return evk_choose_seat(question->group);
}

/* Removes a connection that is over, or that was silent for too long. */
struct evk_removal {
	struct evk_address client;
	__u32 seen; /* not if a packet has come since */
	__u32 zero;
};

SEC("syscall")
int evk_remove(struct evk_removal *removal)
{
	struct evk_address client = removal->client;
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, &client);
	if (!connection || connection->seen != removal->seen)
		return 0;
	__u16 end = connection->flags & ESTABLISHED ? END_CLOSED : END_REFUSED;
	forget_syn(&client, connection);
	end_connection(&client, connection, end, bpf_ktime_get_ns());
	bpf_map_delete_elem(&evk_connections, &client);
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
