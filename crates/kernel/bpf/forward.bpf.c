// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Forwards TCP connections, and sessions of UDP (udp.bpf.h), between clients and members of groups (`forward = "kernel"`),
 * over IPv4 and IPv6.
 *
 * One program at the ingress of each interface (tc). A client's SYN to a listener's address gets a
 * member by the terms that the balancer writes; later packets of both sides follow the connection's entry,
 * which they find by the client's address and port (half NAT: members see the client's address). With full NAT
 * members see an address and a port of the balancer: a second table finds the client of a member's packet. With direct
 * answers members get the client's packets unchanged, and nothing of the members is seen. Errors of ICMP about these
 * packets follow the entry, too.
 * All packets that the program does not take continue to the next filter of the interface, which may be this program
 * in the version of a process before, and to the stack: the rule's listening socket serves a connection that does not
 * begin here. src/forward/layout.rs has the same structures. */
#include <asm-generic/errno-base.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define AF_INET 2
#define AF_INET6 10
#define MAX_SEATS 4096	 /* members of all groups */
#define MAX_GROUPS 256	 /* groups */
#define GROUP_SEATS 128	 /* members of a group that a decision looks at */
#define CONNECTIONS 65536 /* the loader sets the size of the tables */
#define MAX_RETRIES 10 /* members that a connection is refused by, at most, before one accepts */
#define OPTIONS 40     /* bytes of TCP options, at most */

/* Time after which a SYN that comes again is no copy that the network has made. */
#define AGAIN_NS 200000000ULL

/* The same for direct answers, where an acceptance is not seen: clients send the SYN again after a second, also if the
 * acceptance was lost, or takes longer to the client. */
#define DIRECT_AGAIN_NS 2500000000ULL

enum evk_form { FORM_PASS, FORM_SCORE, FORM_TURNS, FORM_HASH, FORM_PREQUAL };

/* Ways to members. 0: the program changes addresses, and sees the answers. */
enum evk_way {
	WAY_DIRECT = 1, /* members answer clients without the balancer */
	WAY_TUNNEL = 2, /* the same, and members get packets by a tunnel */
	WAY_ROWS = 4,	/* the same, and other balancers have the listener's address */
};

enum evk_flag {
	ESTABLISHED = 1, /* the member has accepted */
	ANSWERED = 2,	 /* the member's first byte was seen */
	CLIENT_FIN = 4,
	MEMBER_FIN = 8,
	CLOSED = 16, /* no longer in flight */
	CONFIRMED = 32, /* the client has acknowledged the acceptance: its address is not forged */
	DIRECT = 64, /* the member has the listener's address, and answers the client without the balancer */
	TUNNEL = 128, /* the same, behind a tunnel */
	AWAITED = 256, /* the answer counts: the request is one of `evk_counts.awaited` */
	ASKED = 512, /* the client's data came last: the member has to answer */
	WRITTEN = 1024, /* the client's last data ended a write (PSH) */
	MIXED = 15 << 11, /* turns until answers count, after the sides have not spoken in turn */
	COPIED = 1 << 15, /* copy of another balancer's connection, of which no packet has come here: counted nowhere */
	LOOSE_CLIENT = 1 << 16, /* copy: the client's numbers are old, until a packet of the client says them */
	LOOSE_MEMBER = 1 << 17, /* the same for the member's numbers */
};

/* Bits of the flags, and LIMITED (limits.bpf.h), before the number of requests that the request has found at the member. */
#define OTHERS_AT 19
#define MOST_OTHERS 0x1fffU
#define MIXED_ONE (1 << 11)
#define OTHERS_BITS (MOST_OTHERS << OTHERS_AT)

/* Sessions of UDP whose answers pass here, or not. */
enum evk_udp_event { UDP_SEEN = 1, UDP_UNSEEN };

enum evk_event_kind { EVENT_BEGIN = 1, EVENT_ANSWER, EVENT_END, EVENT_ACCEPT, EVENT_CONFIRM,
		      EVENT_ADOPT = 16 };

/* The last two are of UDP: no answer in time, and an error of ICMP. */
enum evk_end { END_CLOSED, END_REFUSED, END_RESET, END_CLIENT_RESET, END_SILENT, END_UNREACHABLE };

/* Address of IPv6, or of IPv4 as ::ffff:a.b.c.d: the tables are the same for both. */
struct evk_ip {
	union {
		__u32 word[4];
		__u64 half[2];
	};
};

struct evk_address {
	struct evk_ip ip;
	__u16 port;
	__u16 zero[3];
};

struct evk_listener {
	__u32 group;
	__u32 retries; /* other members that a connection may go to if one does not accept */
	__u16 first_port; /* full NAT: ports towards members */
	__u16 ports;	  /* number of these ports; 0: half NAT */
	__u16 way;	  /* of `enum evk_way` */
	__u16 is_limited; /* not 0: evk_limits has limits of the address */
};

struct evk_group {
	__u32 form;
	__u32 growth; /* cost of each further connection, in 1/256 of the first */
	/* FORM_HASH: most connections at a member, relative to the average; 0: any number. FORM_PREQUAL: load from which on a
	 * member is hot, in 1/256 of a connection at a member with the highest weight; NEVER_HOT: none is. */
	__u32 bound;
	__u32 count;  /* with more than GROUP_SEATS the group has a list */
	__u32 seats[GROUP_SEATS];
};

/* Seats of all members of a group. */
struct evk_seat_list {
	__u32 count;
	__u16 seats[MAX_SEATS];
};

/* Written by the balancer. */
struct evk_terms {
	__u64 owner; /* hash of the group's name */
	struct evk_address address;
	__u32 base;   /* score of a connection to an idle member, or distance of its turns */
	__u32 others; /* connections that other processes and the proxy have there */
	__u32 room;   /* limit of connections here; 0: no new connections */
	__u32 leave;  /* not 0: clients with sessions of UDP go to other members */
	__u64 name_hash; /* FORM_HASH: hash of the member's name */
	__u32 weight;	 /* FORM_HASH: weight of the member. FORM_PREQUAL: load of a connection */
	__u32 zero;
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
	__u64 awaited; /* requests without an answer (20 bits), and above, the sum of their beginnings (requests.bpf.h) */
	__u64 requests; /* requests with an answer */
	__u64 request_time; /* sum of their latencies, in units of `request_clock` */
	__u64 request_others; /* sum of the requests that each of them has found at the member */
	__u64 request_last; /* the last one: latency (32 bits), and above, the requests found */
};

/* Sequence numbers of a side, of packets that this side can have sent. */
struct evk_side {
	__u32 next;  /* behind all that the side has sent */
	__u32 acked; /* what the side has last acknowledged of the other one */
};

/* A connection, by the client's address and port. There may be a million: an element of the table with key and
 * value takes 192 bytes of memory if the value has 112 at most. */
struct evk_connection {
	/* The first three are the same in all layouts: the next version ends what this one has left. */
	__u64 began_ns;
	__u32 seen; /* time of the last packet, as `coarse` has it */
	__u32 flags;
	struct evk_ip listener;
	struct evk_ip member;
	__u16 listener_port;
	__u16 member_port;
	__u16 seat;
	__u16 source_port; /* port that the member sees; 0: half NAT, the member sees the client */
	__u64 bytes_in;
	__u64 bytes_out;
	struct evk_side client_side;
	struct evk_side member_side;
	struct evk_ip source; /* address that the member sees, with full NAT */
	__u32 shift;	      /* distance of the timestamps that the member sees from the client's */
	__u32 asked; /* beginning of the request that is AWAITED, as `request_clock` has it */
};

/* Both ends of a connection with full NAT as the member sees them. */
struct evk_nat_pair {
	struct evk_address member;
	struct evk_address source;
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
	struct evk_address member;
	struct evk_address client;
	struct evk_address listener;
	__u32 seat;
	__u16 kind;
	__u8 end;
	__u8 is_udp; /* of `enum evk_udp_event`, or 0: of a connection */
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
	PASSED_TOO_LARGE, /* too large for the way to the client */
	ERRORS,		  /* errors of ICMP, sent to the side that they are for */
	PASSED_RATE,	  /* too many connections of this source are not confirmed */
	PASSED_PORTS,	  /* full NAT: no free port towards the member */
	BY_XDP,		  /* forwarded by native XDP: counted above, too */
	PASSED_REMOTE,	  /* direct answers: a router is on the way to the member */
	PASSED_KEPT,	  /* UDP: the process has the client's session */
	BY_ROW,		  /* of a connection that another balancer has begun: sent to a member of the row */
	BY_ID,		  /* QUIC: first datagrams of sessions that have begun at the member of the connection id */
	LOST_IDS,	  /* QUIC: connection ids for which the table had no place */
	LATE_ANSWERS,	  /* UDP: answers to a datagram that has had one, or whose time was over */
	PASSED_LIMIT,	  /* a limit of the rule is reached: for the client, or for all clients */
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

/* Lists of the groups with more than GROUP_SEATS members. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct evk_seat_list);
} evk_seat_lists SEC(".maps");

/* Time of each group from which on the next decision is told. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, __u64);
} evk_samples SEC(".maps");

/* Time of the last turn of each group: among members of IPv4, and behind these, of IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MAX_GROUPS);
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

/* Clients of connections with full NAT. An element comes and goes with the one of evk_connections. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_nat_pair);
	__type(value, struct evk_address);
} evk_nat_pairs SEC(".maps");

/* Address that a member sees with full NAT, by the seat: written by the balancer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SEATS);
	__type(key, __u32);
	__type(value, struct evk_ip);
} evk_nat_addresses SEC(".maps");

/* Number of ports that were tried for connections to a member, by the seat: the port that was free for longest is the
 * next one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SEATS);
	__type(key, __u32);
	__type(value, __u32);
} evk_nat_cursors SEC(".maps");

/* By the client, too. A connection without an entry here stays with its member. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_address);
	__type(value, struct evk_syn);
} evk_syns SEC(".maps");

/* Bytes of the buffer of events. */
#define EVENTS_SIZE (1 << 22)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_SIZE);
} evk_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} evk_outcomes SEC(".maps");

/* Limit of connections by source that the client has not confirmed, with 0 for none. */
struct evk_source_limit {
	__u64 interval_ns; /* time after which a source may begin one more */
	__u64 burst_ns;	   /* interval times the number of connections at once */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_source_limit);
} evk_source_limit SEC(".maps");

/* Time until which each source has used what it may begin: an address of IPv4, or a network /64 of IPv6. A source that
 * the kernel removes begins anew: the limit is only wider then. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct evk_ip);
	__type(value, __u64);
} evk_sources SEC(".maps");

/* Connections of a listening address: what administrators see of a rule. */
struct evk_listener_counts {
	__u64 begun;
	__s64 open;
	__u64 bytes_in; /* of connections that have ended */
	__u64 bytes_out;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_address);
	__type(value, struct evk_listener_counts);
} evk_listener_counts SEC(".maps");

static __always_inline int is_equal(const struct evk_ip *a, const struct evk_ip *b)
{
	return a->half[0] == b->half[0] && a->half[1] == b->half[1];
}

/* The first half of an address of IPv4, and the word before the address. */
#define MAPPED_HALF 0
#define MAPPED_WORD bpf_htonl(0xffff)

static __always_inline int is_ipv6(const struct evk_ip *ip)
{
	return ip->half[0] != MAPPED_HALF || ip->word[2] != MAPPED_WORD;
}

static __always_inline void map_ipv4(struct evk_ip *ip, __u32 address)
{
	ip->half[0] = MAPPED_HALF;
	ip->word[2] = MAPPED_WORD;
	ip->word[3] = address;
}

static __always_inline void copy_ipv6(struct evk_ip *ip, const struct in6_addr *address)
{
	__builtin_memcpy(ip, address, sizeof(*ip));
}

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

/* True if a length is within limits, both above 0. The compiler would make one comparison of two, or leave one out, and the
 * verifier of Linux 6.1 would not know the limits. It learns nothing from a comparison with 0, and so this one is signed. */
static __always_inline int is_within(__u32 *length, __u32 least, __u32 most)
{
	barrier_var(*length);
	if ((__s32)*length < (__s32)least)
		return 0;
	barrier_var(*length);
	return *length <= most;
}

/* True if a packet is of IPv6. */
static __always_inline int has_ipv6(const struct __sk_buff *skb)
{
	int is6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	/* The compiler would compare the protocol each time, and each time the verifier would follow both answers. */
	barrier_var(is6);
	return is6;
}

/* Time in units of 2^20 ns: about a millisecond. */
static __always_inline __u32 coarse(__u64 ns)
{
	return ns >> 20;
}

/* Kinds of events that the balancer does not need, a bit for each. Written by the balancer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} evk_unneeded SEC(".maps");

/* True if the balancer needs the events of a kind. */
static __always_inline int is_needed(__u16 kind)
{
	__u32 zero = 0, *unneeded = bpf_map_lookup_elem(&evk_unneeded, &zero);
	return !unneeded || !(*unneeded & 1U << kind);
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
	__builtin_memset(&event->member, 0, sizeof(event->member));
	event->member.ip = connection->member;
	event->member.port = connection->member_port;
	event->client = *client;
	__builtin_memset(&event->listener, 0, sizeof(event->listener));
	event->listener.ip = connection->listener;
	event->listener.port = connection->listener_port;
	event->seat = connection->seat;
	event->kind = kind;
	event->end = end;
	event->is_udp = 0;
	event->began_ns = connection->began_ns;
	event->ns = now;
	event->bytes_in = connection->bytes_in;
	event->bytes_out = connection->bytes_out;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Finds the counts of a connection's listening address, which the balancer has made. */
static __always_inline struct evk_listener_counts *find_listener_counts(const struct evk_connection *connection)
{
	struct evk_address listener = { .ip = connection->listener, .port = connection->listener_port };
	return bpf_map_lookup_elem(&evk_listener_counts, &listener);
}

#include "limits.bpf.h"
#include "requests.bpf.h"

/* Ends a connection once: 0 if it has ended before. The entry stays until no packet has come for a while. */
static __always_inline int end_connection(const struct evk_address *client,
					  struct evk_connection *connection, __u16 end, __u64 now)
{
	/* A copy counts nowhere, and a stranger must not end it. */
	if (connection->flags & COPIED)
		return 0;
	__u32 before = __sync_fetch_and_or(&connection->flags, CLOSED);
	if (before & CLOSED)
		return 0;
	__u32 seat = connection->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	forget_request(connection, counts, now);
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
	struct evk_listener_counts *all = find_listener_counts(connection);
	if (all) {
		__sync_fetch_and_add(&all->open, -1);
		__sync_fetch_and_add(&all->bytes_in, connection->bytes_in);
		__sync_fetch_and_add(&all->bytes_out, connection->bytes_out);
	}
	if (before & LIMITED)
		evk_limit_connection(client, connection, before & CONFIRMED ? LIMIT_END | LIMIT_CONFIRMED : LIMIT_END,
				     now);
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
	__u32 is_ipv6; /* a client goes to members of its family */
	/* Seats that were looked at, in this order, with their scores. */
	__u32 count;
	__u32 seats[GROUP_SEATS];
	__u64 scores[GROUP_SEATS];
	struct evk_address client;
	/* FORM_HASH: key of the client, bound times all connections, and sum of the weights. All scores are worked out whole
	 * if `is_told` is set. */
	__u64 is_told;
	__u64 key;
	__u64 limit;
	__u64 weight;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_best);
} evk_best SEC(".maps");

/* What a decision asks of all seats. */
enum evk_asked {
	OF_IPV6 = 1,	   /* members of IPv6, and not of IPv4 */
	SOME_EXCLUDED = 2, /* some seats are excluded */
	BY_TURNS = 4,	   /* members take turns: FORM_TURNS */
	BY_HASH = 8,	   /* FORM_HASH */
	BY_LOAD = 16,	   /* FORM_PREQUAL */
};

static __always_inline __u32 ask_seats(const struct evk_best *best, __u32 form)
{
	return (best->is_ipv6 ? OF_IPV6 : 0) | (best->tries ? SOME_EXCLUDED : 0) | (form == FORM_TURNS ? BY_TURNS : 0) |
	       (form == FORM_HASH ? BY_HASH : 0) | (form == FORM_PREQUAL ? BY_LOAD : 0);
}

/* FORM_PREQUAL: members that are hot come behind all others. */
#define HOT (1ULL << 63)
#define NEVER_HOT 0xffffffffU

/* Number that scores of a form are compared with: the time of the last turn, or the load from which on a member is hot. */
static __always_inline __u64 find_mark(const struct evk_group *group, __u64 last_turn)
{
	if (group->form != FORM_PREQUAL)
		return last_turn;
	return group->bound == NEVER_HOT ? ~0ULL : group->bound;
}

/* True if a seat is excluded. */
static __always_inline int was_tried(__u32 seat)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	for (__u32 i = 0; best && i < MAX_RETRIES; i++) {
		if (i >= best->tries)
			break;
		if (best->tried[i] == seat)
			return 1;
	}
	return 0;
}

#define NO_SEAT (~0ULL)

/* Number of connections at the member of a seat; NO_SEAT if the member may not get one. */
static __always_inline __u64 count_busy(__u32 seat, __u32 asked, const struct evk_terms *terms,
					const struct evk_counts *counts)
{
	if (asked & SOME_EXCLUDED && was_tried(seat))
		return NO_SEAT;
	if (is_ipv6(&terms->address.ip) != (asked & OF_IPV6))
		return NO_SEAT;
	__s64 own = counts->in_flight;
	__u64 here = own > 0 ? own : 0;
	return here >= terms->room ? NO_SEAT : here + terms->others;
}

#include "hash.bpf.h"

/* Score of a seat, the lowest wins; NO_SCORE if the member may not get a connection. A function of its
 * own, which the verifier checks once: inlined, its branches would multiply in the loop below. `asked` is of
 * `enum evk_asked`, and `mark` is from `find_mark`. */
__attribute__((noinline)) __u64 evk_score(__u32 seat, __u32 asked, __u32 growth, __u64 mark)
{
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!terms || !counts)
		return NO_SCORE;
	__u64 busy = count_busy(seat, asked, terms, counts);
	if (busy == NO_SEAT)
		return NO_SCORE;
	if (asked & BY_TURNS)
		return counts->pass > mark ? counts->pass : mark;
	if (busy > 0xffffff)
		busy = 0xffffff;
	__u64 load = busy * terms->weight;
	if (asked & BY_LOAD && load >> 8 >= mark)
		return HOT | load;
	/* The first connection costs 1, the second 1, each further one `growth`. */
	__u64 places = 256;
	if (busy > 0)
		places += 256 + (busy - 1) * growth;
	__u64 score = places >> 32 ? NO_SCORE - 1 : terms->base * places;
	return asked & BY_LOAD && score >= HOT ? HOT - 1 : score;
}

/* Lists the seats that a decision looks at, in their order: of more than GROUP_SEATS members that number, from any member on.
 * Returns 0, BY_HASH for decisions by hash, -1 if there are no members, or -2 if the form is not known. Apart from the choice,
 * as the stack has no room for both. */
__attribute__((noinline)) int evk_list_seats(__u32 number)
{
	__u32 zero = 0;
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!group || !best)
		return -2;
	__u32 form = group->form, total = group->count;
	if (form == FORM_PASS || form > FORM_PREQUAL || total > MAX_SEATS)
		return -2;
	if (total == 0)
		return -1;
	struct evk_seat_list *list = 0;
	if (total > GROUP_SEATS) {
		list = bpf_map_lookup_elem(&evk_seat_lists, &number);
		/* The number of the group may be newer than the list, or older. */
		total = list ? list->count : 0;
		if (!list || total == 0 || total > MAX_SEATS)
			return -2;
	}
	best->count = total < GROUP_SEATS ? total : GROUP_SEATS;
	__u32 at = form == FORM_HASH ? 0 : bpf_get_prandom_u32() % total;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		if (i >= best->count)
			break;
		best->seats[i] = list ? list->seats[at & (MAX_SEATS - 1)] : group->seats[at & (GROUP_SEATS - 1)];
		/* The next one, and the first one after the last: without a division, and without a branch, which the
		 * verifier would follow in each turn. */
		at += 1;
		at &= (__u32)((__s32)(at - total) >> 31);
	}
	return form == FORM_HASH ? BY_HASH : 0;
}

/* Chooses a seat that is not excluded, among those that are listed: `evenkeel_core::terms::choose` is the same function, and
 * for FORM_HASH `evenkeel_core::hash_terms::choose_seat`. Returns -1 if no member has room. */
__attribute__((noinline)) int evk_choose_listed(__u32 number)
{
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!group || !best)
		return -2;
	__u32 family = best->is_ipv6 ? number + MAX_GROUPS : number;
	__u64 *turn = bpf_map_lookup_elem(&evk_turns, &family);
	if (!turn)
		return -2;
	__u64 mark = find_mark(group, *turn);
	__u32 asked = ask_seats(best, group->form);
	best->score = NO_SCORE;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		if (i >= best->count)
			break;
		__u32 seat = best->seats[i];
		__u64 score = asked & BY_HASH ? evk_score_by_hash(seat, asked) :
						evk_score(seat, asked, group->growth, mark);
		best->scores[i] = score;
		if (score < best->score) {
			best->score = score;
			best->seat = seat;
		}
	}
	if (best->score == NO_SCORE)
		return -1;
	__u32 seat = best->seat;
	/* Read once more: the stack has no room for what a loop keeps. */
	if (group->form == FORM_TURNS) {
		struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
		struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
		if (terms && counts) {
			counts->pass = best->score + terms->base;
			*turn = best->score;
		}
	}
	return seat;
}

/* Chooses a seat of a group that is not excluded. Returns -1 if no member has room, -2 if the form is not known. */
static __always_inline int choose_seat(__u32 number)
{
	int listed = evk_list_seats(number);
	if (listed < 0)
		return listed;
	if (listed == BY_HASH)
		evk_begin_hash(number);
	return evk_choose_listed(number);
}

/* Time between two decisions of a group that are told. */
#define SAMPLE_NS 1000000000ULL

struct evk_candidate {
	__u64 score;
	__u32 seat;
	__u32 here; /* connections of this program */
	__u32 base;
	__u32 others;
	__u32 room;
	__u32 awaited; /* requests without an answer */
};

/* A decision with the terms of all members, for people. */
struct evk_decision {
	__u64 ns;
	struct evk_address client;
	__u32 group;
	__u32 chosen;
	__u32 form;
	__u32 tries; /* members that have not accepted before */
	__u32 count;
	__u32 zero;
	struct evk_candidate candidates[GROUP_SEATS];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} evk_decisions SEC(".maps");

/* Tells the decision that was just taken, with all candidates, once in a while. A function of its own, which the
 * verifier checks once. Returns 1 if the decision was told. */
__attribute__((noinline)) int evk_tell_decision(__u32 number, __u32 chosen, __u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&evk_samples, &number);
	if (!next || now < *next)
		return 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	if (!best || !group)
		return 0;
	*next = now + SAMPLE_NS;
	struct evk_decision *told = bpf_ringbuf_reserve(&evk_decisions, sizeof(*told), 0);
	if (!told)
		return 0;
	told->ns = now;
	told->client = best->client;
	told->group = number;
	told->chosen = chosen;
	told->form = group->form;
	told->tries = best->tries;
	told->count = best->count;
	told->zero = 0;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		struct evk_candidate *candidate = &told->candidates[i];
		__u32 seat = best->seats[i];
		struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
		struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
		__builtin_memset(candidate, 0, sizeof(*candidate));
		if (i >= best->count || !terms || !counts)
			continue;
		__s64 here = counts->in_flight;
		candidate->score = best->scores[i];
		candidate->seat = seat;
		candidate->here = here > 0 ? here : 0;
		candidate->base = terms->base;
		candidate->others = terms->others;
		candidate->room = terms->room;
		candidate->awaited = counts->awaited & AWAITED_MASK;
	}
	bpf_ringbuf_submit(told, BPF_RB_NO_WAKEUP);
	return 1;
}

#define IP_AT ETH_HLEN
#define HEADERS (ETH_HLEN + 20 + 20)
#define HEADERS6 (ETH_HLEN + 40 + 20)

/* Offset of the checksum in the header of TCP. */
#define CHECK_AT 16

#include "ways.bpf.h"
#include "words.bpf.h"

/* Returns the difference of the sums of two addresses. */
static __always_inline __s64 compare_addresses(const struct evk_ip *old, const struct evk_ip *next)
{
	return bpf_csum_diff((void *)old, sizeof(*old), (void *)next, sizeof(*next), 0);
}

/* Changes an address in the header of IPv4, and the lifetime. */
static __always_inline int change_ipv4(struct __sk_buff *skb, int is_source, __u32 address, __u32 check_at)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 20 > end)
		return -1;
	struct iphdr *ip = data + IP_AT;
	__u32 old = is_source ? ip->saddr : ip->daddr;
	if (ip->ttl <= 1)
		return -1;
	/* The lifetime and the protocol share a word of the checksum. */
	__u16 before = bpf_htons(ip->ttl << 8 | ip->protocol);
	__u16 after = bpf_htons((ip->ttl - 1) << 8 | ip->protocol);
	ip->ttl -= 1;
	if (is_source)
		ip->saddr = address;
	else
		ip->daddr = address;
	bpf_l3_csum_replace(skb, IP_AT + 10, before, after, 2);
	bpf_l3_csum_replace(skb, IP_AT + 10, old, address, 4);
	if (check_at)
		bpf_l4_csum_replace(skb, check_at, old, address, BPF_F_PSEUDO_HDR | 4);
	return 0;
}

/* Changes an address in the header of IPv6, and the lifetime. The header has no checksum: the sum that an interface
 * has taken of the whole packet, if one has, is corrected for what the checksum of the payload does not balance. */
static __always_inline int change_ipv6(struct __sk_buff *skb, int is_source, const struct evk_ip *address,
				       __u32 check_at)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 40 > end)
		return -1;
	struct ipv6hdr *ip = data + IP_AT;
	if (ip->hop_limit <= 1)
		return -1;
	struct evk_ip old, next = *address;
	copy_ipv6(&old, is_source ? &ip->saddr : &ip->daddr);
	/* The word of the lifetime, without the length. */
	__u32 before = bpf_htonl(ip->nexthdr << 8 | ip->hop_limit);
	__u32 after = bpf_htonl(ip->nexthdr << 8 | (ip->hop_limit - 1));
	ip->hop_limit -= 1;
	__builtin_memcpy(is_source ? &ip->saddr : &ip->daddr, &next, sizeof(next));
	__s64 change = compare_addresses(&old, &next);
	bpf_l4_csum_replace(skb, check_at, 0, change, BPF_F_PSEUDO_HDR);
	bpf_csum_update(skb, bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), change));
	return 0;
}

static __always_inline int drop(void)
{
	count(DROPPED);
	return TC_ACT_SHOT;
}

/* What is needed of a packet's headers. */
struct headers {
	struct evk_address from, to;
	__u32 payload;
	__u32 options_length;
	__u32 sequence, answered;
	__u16 window;
	__u8 tos;
	__u8 syn, ack, fin, rst, psh;
	__u8 is_ipv6;
	__u8 keeps_whole; /* must not be sent in fragments */
};

/* Entries before they are in the tables. */
struct evk_draft {
	struct evk_connection connection;
	struct evk_syn syn;
	struct evk_address client;
	struct evk_address sender; /* sender that the member sees */
	struct evk_nat_pair pair;  /* entry of full NAT */
	struct evk_nat_pair old;   /* entry of the member before */
	struct evk_ip from, to;	   /* addresses of the RST that becomes a SYN */
	struct bpf_fib_lookup fib; /* way of this SYN */
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

/* Ports that are tried for a connection. */
#define PORT_TRIES 32
/* First tries: the ports in their order. Long connections may have many that lie together; then any port will do. */
#define PORTS_IN_ORDER 8

/* Chooses the port of a try. */
static __always_inline __u16 choose_port(__u32 *cursor, __u32 tried, __u32 first, __u32 ports)
{
	__u32 number = tried < PORTS_IN_ORDER ? __sync_fetch_and_add(cursor, 1) : bpf_get_prandom_u32();
	return bpf_htons(first + number % ports);
}

/* Fills in the entry of full NAT of a connection. */
static __always_inline void fill_pair(struct evk_nat_pair *pair, const struct evk_connection *connection)
{
	__builtin_memset(pair, 0, sizeof(*pair));
	pair->member.ip = connection->member;
	pair->member.port = connection->member_port;
	pair->source.ip = connection->source;
	pair->source.port = connection->source_port;
}

/* Frees the port of a connection; none with half NAT. */
static __always_inline void free_port(const struct evk_nat_pair *pair)
{
	if (pair->source.port)
		bpf_map_delete_elem(&evk_nat_pairs, pair);
}

/* Claims the entry of a connection, which is deleted or replaced then. `began` was read before all that shows which connection
 * the entry has: if another CPU has claimed the entry since, the entry is gone, and another connection may have the memory, the
 * client or the port. Returns 0 in this case. Times of 0 are those of claimed entries. */
static __always_inline int claim_entry(struct evk_connection *connection, __u64 began)
{
	return began && __sync_val_compare_and_swap(&connection->began_ns, began, 0) == began;
}

/* Deletes the entry of a client, and frees the port of the entry. `began` as in `claim_entry`; `pair` is memory for the
 * addresses. Returns 0 if another CPU has claimed the entry. */
static __always_inline int delete_entry(const struct evk_address *client, struct evk_connection *connection, __u64 began,
					struct evk_nat_pair *pair)
{
	fill_pair(pair, connection);
	if (!claim_entry(connection, began))
		return 0;
	if (bpf_map_delete_elem(&evk_connections, client)) {
		connection->began_ns = began;
		return 0;
	}
	free_port(pair);
	return 1;
}

/* Takes a port towards the draft's member: of those that are free, nearly the one that was free for longest. Returns an
 * outcome if there is none. */
__attribute__((noinline)) int evk_take_port(__u32 first, __u32 ports)
{
	struct evk_draft *draft = find_draft();
	if (!draft || !ports)
		return PASSED_PORTS;
	__u32 seat = draft->connection.seat;
	__u32 *cursor = bpf_map_lookup_elem(&evk_nat_cursors, &seat);
	if (!cursor)
		return PASSED_PORTS;
	fill_pair(&draft->pair, &draft->connection);
	for (__u32 i = 0; i < PORT_TRIES; i++) {
		__u16 port = choose_port(cursor, i, first, ports);
		draft->pair.source.port = port;
		if (!bpf_map_update_elem(&evk_nat_pairs, &draft->pair, &draft->client, BPF_NOEXIST)) {
			draft->connection.source_port = port;
			draft->sender.port = port;
			return 0;
		}
	}
	draft->pair.source.port = 0;
	return PASSED_PORTS;
}

/* Memory for a change of a packet: the stack has no room. */
struct evk_scratch {
	struct evk_ip from, to; /* addresses and ports that the packet gets */
	__be16 ports[2];
	__u8 is_source, is_ipv6; /* is_source: a client's packet */
	__u32 shift;
	__u32 length; /* of the options */
	__u32 at;
	__u8 options[64];
	__u8 old_options[OPTIONS];
	struct evk_nat_pair pair;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_scratch);
} evk_scratch SEC(".maps");

static __always_inline struct evk_scratch *find_scratch(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_scratch, &zero);
}

/* Number and length of the option with timestamps (RFC 7323). */
#define TIMESTAMPS 8
#define TIMESTAMPS_LENGTH 10
/* Options that begin with two fillers and timestamps, as systems write them (RFC 7323, appendix A). */
#define USUAL_OPTIONS bpf_htonl(1 << 24 | 1 << 16 | TIMESTAMPS << 8 | TIMESTAMPS_LENGTH)
/* The same behind the largest segment size, which first packets begin with: selective acknowledgements instead of fillers,
 * or fillers without these. */
#define SEGMENT_SIZE bpf_htonl(2 << 24 | 4 << 16)
#define SEGMENT_SIZE_MASK bpf_htonl(0xffff0000)
#define USUAL_FIRST_OPTIONS bpf_htonl(4 << 24 | 2 << 16 | TIMESTAMPS << 8 | TIMESTAMPS_LENGTH)

/* Finds the timestamps among the options in the scratch memory: the offset of the sender's one, 0 if there are none.
 * The place is in memory: the verifier would follow each value that it may have. */
__attribute__((noinline)) int evk_find_timestamps(void)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return 0;
	__u32 length = scratch->length;
	volatile __u32 *place = &scratch->at;
	*place = 0;
	for (__u32 i = 0; i < OPTIONS; i++) {
		__u32 at = *place;
		if (at + TIMESTAMPS_LENGTH > length || at > OPTIONS)
			return 0;
		__u8 kind = scratch->options[at & 63], size = scratch->options[(at + 1) & 63];
		if (kind == TIMESTAMPS)
			return size == TIMESTAMPS_LENGTH ? at + 2 : 0;
		if (kind == 0)
			return 0;
		if (kind != 1 && size < 2)
			return 0;
		*place = at + (kind == 1 ? 1 : size);
	}
	return 0;
}

/* Returns a timestamp of the options in the scratch memory. */
static __always_inline __u32 read_timestamp(const struct evk_scratch *scratch, __u32 at)
{
	return (__u32)scratch->options[at & 63] << 24 | (__u32)scratch->options[(at + 1) & 63] << 16 |
	       (__u32)scratch->options[(at + 2) & 63] << 8 | scratch->options[(at + 3) & 63];
}

/* Shifts a timestamp of the options in the scratch memory: the client's one on the way to the member, and the one that
 * the member returns on the way back. Returns 0 if there is none. */
__attribute__((noinline)) int evk_shift_timestamps(void)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return 0;
	__u32 at = evk_find_timestamps();
	if (!at)
		return 0;
	if (!scratch->is_source)
		at += 4;
	__u32 value = read_timestamp(scratch, at);
	/* A packet that acknowledges nothing returns no timestamp. */
	if (!scratch->is_source && !value)
		return 0;
	value += scratch->is_source ? scratch->shift : -scratch->shift;
	scratch->options[at & 63] = value >> 24;
	scratch->options[(at + 1) & 63] = value >> 16;
	scratch->options[(at + 2) & 63] = value >> 8;
	scratch->options[(at + 3) & 63] = value;
	return 1;
}

/* Shifts the timestamps of a packet whose options are not as systems write them. Returns -1 if the packet is shorter than
 * it says. */
static __attribute__((noinline)) int shift_options(struct __sk_buff *skb)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return -1;
	__u32 tcp_at = scratch->is_ipv6 ? ETH_HLEN + 40 : ETH_HLEN + 20, length = scratch->length;
	if (!is_within(&length, 1, OPTIONS))
		return 0;
	if (bpf_skb_load_bytes(skb, tcp_at + 20, scratch->options, length))
		return -1;
	__builtin_memcpy(scratch->old_options, scratch->options, OPTIONS);
	if (!evk_shift_timestamps())
		return 0;
	/* All options, as the timestamps may begin at an odd byte. */
	__s64 change = bpf_csum_diff((void *)scratch->old_options, OPTIONS, (void *)scratch->options, OPTIONS, 0);
	if (bpf_skb_store_bytes(skb, tcp_at + 20, scratch->options, length, 0))
		return -1;
	bpf_l4_csum_replace(skb, tcp_at + CHECK_AT, 0, change, 0);
	return 0;
}

/* Shifts the timestamps of options that are as systems write them: the client's one on the way to the member, and the one
 * that the member returns on the way back. Returns the difference of the sums, or -1 for other options. */
static __always_inline __s64 shift_usual(const struct evk_scratch *scratch, __be32 *options, void *end)
{
	__u32 length = scratch->length;
	if (length < 12 || (void *)(options + 3) > end)
		return -1;
	if (options[0] != USUAL_OPTIONS) {
		if (length < 16 || (void *)(options + 4) > end || (options[0] & SEGMENT_SIZE_MASK) != SEGMENT_SIZE ||
		    (options[1] != USUAL_FIRST_OPTIONS && options[1] != USUAL_OPTIONS))
			return -1;
		options += 1;
	}
	__be32 *place = options + (scratch->is_source ? 1 : 2);
	__be32 old = *place;
	/* As in `evk_shift_timestamps`. */
	if (!scratch->is_source && !old)
		return 0;
	__be32 next = bpf_htonl(bpf_ntohl(old) + (scratch->is_source ? scratch->shift : -scratch->shift));
	*place = next;
	return 0xffffffffULL - old + next;
}

/* Gives a packet of TCP the addresses and ports in the scratch memory, lowers the lifetime, and shifts the timestamps.
 * The checksum changes for the addresses, of which a checksum that is left to the interface has the sum, and then for the
 * rest. Returns 1 if the timestamps are left, and -1 if the packet is shorter than it says. */
__attribute__((noinline)) int evk_change(struct __sk_buff *skb)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return -1;
	int is6 = scratch->is_ipv6;
	__u32 tcp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + tcp_at + 20 > end)
		return -1;
	__u32 addresses = is6 ? write_addresses6(data + IP_AT, &scratch->from, &scratch->to) :
				write_addresses4(data + IP_AT, &scratch->from, &scratch->to);
	struct tcphdr *tcp = data + tcp_at;
	__u32 old_ports = tcp->source | (__u32)tcp->dest << 16;
	__u32 ports = scratch->ports[0] | (__u32)scratch->ports[1] << 16;
	tcp->source = scratch->ports[0];
	tcp->dest = scratch->ports[1];
	__u64 rest = 0xffffffffULL - old_ports + ports;
	int has_unusual = 0;
	if (scratch->shift && scratch->length) {
		__s64 shifted = shift_usual(scratch, data + tcp_at + 20, end);
		has_unusual = shifted < 0;
		if (shifted > 0)
			rest += shifted;
	}
	/* A sum of nothing is all ones. */
	__u32 change = fold32(rest);
	if (addresses != 0xffffffff)
		bpf_l4_csum_replace(skb, tcp_at + CHECK_AT, 0, addresses, BPF_F_PSEUDO_HDR);
	if (is6)
		correct_sum6(skb, addresses);
	if (change != 0xffffffff)
		bpf_l4_csum_replace(skb, tcp_at + CHECK_AT, 0, change, 0);
	return has_unusual;
}

/* Sends a packet on with these addresses. `shift`: distance of the timestamps of full NAT, or 0. */
static __always_inline int send(struct __sk_buff *skb, const struct bpf_fib_lookup *fib, const struct headers *head,
				const struct evk_ip *from, __be16 from_port, const struct evk_ip *to, __be16 to_port,
				int is_of_client, __u32 shift)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return drop();
	scratch->from = *from;
	scratch->to = *to;
	scratch->ports[0] = from_port;
	scratch->ports[1] = to_port;
	scratch->is_source = is_of_client;
	scratch->is_ipv6 = head->is_ipv6;
	scratch->shift = shift;
	scratch->length = head->options_length;
	int left = evk_change(skb);
	if (left && (left < 0 || shift_options(skb)))
		return drop();
	return redirect(fib);
}

/* Shifts the timestamps of the draft's SYN. */
static __always_inline void shift_syn(struct evk_draft *draft)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch || !draft->connection.source_port)
		return;
	__builtin_memcpy(scratch->options, draft->syn.options, OPTIONS);
	scratch->length = draft->syn.options_length;
	scratch->is_source = 1;
	scratch->shift = draft->connection.shift;
	if (evk_shift_timestamps())
		__builtin_memcpy(draft->syn.options, scratch->options, OPTIONS);
}

/* Clock of the timestamps that members see: about 1,907 steps a second. Clients' clocks have a thousand at most, so a
 * connection that begins is ahead of all connections before from the same port, and a member in TIME_WAIT accepts it. */
static __always_inline __u32 read_timestamp_clock(__u64 now)
{
	return now >> 19;
}

/* Chooses the address that the draft's member sees, and the shift of the timestamps. Returns -1 if no address is
 * known. */
static __always_inline int choose_source(const struct evk_address *client, const struct evk_listener *listener,
					 struct evk_draft *draft, __u64 now)
{
	struct evk_connection *connection = &draft->connection;
	draft->client = *client;
	draft->sender = *client;
	connection->source_port = 0;
	connection->source.half[0] = 0;
	connection->source.half[1] = 0;
	connection->shift = 0;
	connection->asked = 0;
	fill_pair(&draft->pair, connection);
	if (!listener->ports)
		return 0;
	__u32 seat = connection->seat;
	struct evk_ip *address = bpf_map_lookup_elem(&evk_nat_addresses, &seat);
	struct evk_scratch *scratch = find_scratch();
	if (!address || !scratch || (!address->half[0] && !address->half[1]))
		return -1;
	connection->source = *address;
	draft->sender.ip = *address;
	__builtin_memcpy(scratch->options, draft->syn.options, OPTIONS);
	scratch->length = draft->syn.options_length;
	__u32 at = evk_find_timestamps();
	if (at)
		connection->shift = read_timestamp_clock(now) - read_timestamp(scratch, at);
	return 0;
}

#include "rows.bpf.h"

/* Chooses a member for a connection to the draft's listener, finds the route, and fills in the rest of the
 * draft. Returns an outcome if there is no member. */
static __always_inline int prepare(struct __sk_buff *skb, const struct evk_address *client,
				   const struct evk_listener *listener, struct evk_draft *draft,
				   struct bpf_fib_lookup *fib, __u64 now)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!best)
		return PASSED_FORM;
	best->tries = draft->syn.tries;
	best->is_ipv6 = is_ipv6(&client->ip);
	best->client = *client;
	__builtin_memcpy(best->tried, draft->syn.tried, sizeof(best->tried));
	int chosen;
	if (listener->way & WAY_ROWS) {
		struct evk_address to = { .ip = draft->connection.listener, .port = draft->connection.listener_port };
		chosen = evk_choose_of_row(listener->group, hash_addresses(client, &to));
	} else {
		chosen = choose_seat(listener->group);
	}
	if (chosen < 0)
		return chosen == -2 ? PASSED_FORM : PASSED_NO_ROOM;
	__u32 seat = chosen;
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	if (!terms)
		return PASSED_FORM;
	struct evk_connection *connection = &draft->connection;
	connection->member = terms->address.ip;
	connection->member_port = terms->address.port;
	connection->seat = seat;
	if (choose_source(client, listener, draft, now))
		return PASSED_ROUTE;
	if (find_way(skb, fib, &draft->sender.ip, &connection->member, draft->syn.tos) != FOUND)
		return PASSED_ROUTE;
	if (listener->way == WAY_DIRECT && !is_neighbour(fib, &connection->member))
		return PASSED_REMOTE;
	if (listener->way & WAY_TUNNEL && evk_aim(seat, NO_GROUP))
		return PASSED_ROUTE;
	connection->began_ns = now;
	connection->seen = coarse(now);
	connection->flags = listener->way & WAY_TUNNEL ? DIRECT | TUNNEL : listener->way ? DIRECT : 0;
	if (listener->is_limited)
		connection->flags |= LIMITED;
	connection->bytes_in = 0;
	connection->bytes_out = 0;
	/* Until the member accepts, `acked` is the least that an acceptance acknowledges. */
	connection->client_side.next = draft->syn.sequence + 1;
	connection->client_side.acked = draft->syn.sequence + 1;
	connection->member_side.next = 0;
	connection->member_side.acked = 0;
	if (listener->ports) {
		int outcome = evk_take_port(listener->first_port, listener->ports);
		if (outcome)
			return outcome;
	}
	evk_tell_decision(listener->group, seat, now);
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
	struct evk_listener_counts *all = find_listener_counts(&draft->connection);
	if (all) {
		__sync_fetch_and_add(&all->open, 1);
		/* A connection that goes to another member begins once. */
		if (!draft->syn.tries)
			__sync_fetch_and_add(&all->begun, 1);
	}
	if (draft->connection.flags & LIMITED)
		evk_limit_connection(client, &draft->connection, draft->syn.tries ? LIMIT_ADD : LIMIT_BEGIN, now);
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
	__u32 at = head->is_ipv6 ? HEADERS6 : HEADERS;
	if (is_within(&length, 1, OPTIONS) && bpf_skb_load_bytes(skb, at, syn->options, length))
		return -1;
	return 0;
}

/* Deletes the entry of a client's connection that is over: the port is used again. The entry is looked up anew: since the
 * packet's look-up another CPU may have deleted the entry, and another entry may have the memory. */
static __always_inline void clear_closed(const struct evk_address *client, struct evk_draft *draft)
{
	struct evk_connection *old = bpf_map_lookup_elem(&evk_connections, client);
	__u64 began = old ? old->began_ns : 0;
	if (old && old->flags & CLOSED)
		delete_entry(client, old, began, &draft->old);
}

/* Finds what a client's source has used; an entry is made if `makes` is set. */
static __always_inline __u64 *find_source(const struct evk_address *client, int makes)
{
	struct evk_ip source = client->ip;
	__u64 none = 0;
	if (is_ipv6(&source))
		source.half[1] = 0;
	__u64 *used = bpf_map_lookup_elem(&evk_sources, &source);
	if (used || !makes)
		return used;
	bpf_map_update_elem(&evk_sources, &source, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&evk_sources, &source);
}

/* Finds the limit of sources, or 0 if there is none. */
static __always_inline struct evk_source_limit *find_source_limit(void)
{
	__u32 zero = 0;
	struct evk_source_limit *limit = bpf_map_lookup_elem(&evk_source_limit, &zero);
	return limit && limit->interval_ns ? limit : 0;
}

/* True if a client's source may begin no connection now. `used` is set to what the source has used, or 0. */
static __always_inline int is_over_rate(const struct evk_address *client, __u64 **used, __u64 now)
{
	struct evk_source_limit *limit = find_source_limit();
	*used = limit ? find_source(client, 0) : 0;
	return limit && *used && **used > now && **used - now + limit->interval_ns > limit->burst_ns;
}

/* Counts a connection that a client's source has begun. `used`: what the source has used, if that is known. */
static __always_inline void use_source(const struct evk_address *client, __u64 *used, __u64 now)
{
	struct evk_source_limit *limit = find_source_limit();
	if (!limit)
		return;
	if (!used)
		used = find_source(client, 1);
	if (!used)
		return;
	/* Two CPUs may do this at once: then the source may begin one more. */
	if (*used < now)
		*used = now;
	__sync_fetch_and_add(used, limit->interval_ns);
}

/* Gives back a connection that the client has confirmed. */
static __always_inline void give_back_to_source(const struct evk_address *client)
{
	struct evk_source_limit *limit = find_source_limit();
	__u64 *used = limit ? find_source(client, 0) : 0;
	if (used && *used > limit->interval_ns)
		__sync_fetch_and_add(used, -limit->interval_ns);
}

/* Sends a client's packet to the member of a connection, which has the listener's address with direct answers, and sees an
 * address of the balancer with full NAT. */
static __always_inline int send_to_member(struct __sk_buff *skb, const struct bpf_fib_lookup *fib,
					  const struct headers *head, const struct evk_address *client,
					  const struct evk_connection *connection)
{
	count(FORWARDED_TO_MEMBER);
	if (connection->flags & TUNNEL)
		return aim_at_member(client, connection);
	int is_direct = connection->flags & DIRECT, has_nat = !!connection->source_port;
	return send(skb, fib, head, has_nat ? &connection->source : &client->ip,
		    has_nat ? connection->source_port : client->port,
		    is_direct ? &connection->listener : &connection->member,
		    is_direct ? connection->listener_port : connection->member_port, 1,
		    has_nat ? connection->shift : 0);
}

/* True if the limits of the draft's listener let a client have another connection. */
static __always_inline int may_begin(const struct evk_address *client, struct evk_draft *draft, __u64 now)
{
	draft->connection.began_ns = now;
	draft->connection.flags = 0;
	return evk_limit_connection(client, &draft->connection, LIMIT_ADMIT, now);
}

/* Counts the confirmation of a connection, which had these flags before. */
static __always_inline void count_confirmation(const struct evk_address *client, const struct evk_connection *connection,
					       __u32 before, __u64 now)
{
	give_back_to_source(client);
	if ((before & (LIMITED | CLOSED)) == LIMITED)
		evk_limit_connection(client, connection, LIMIT_CONFIRM | LIMIT_CONFIRMED, now);
}

/* Begins a connection with a client's packet. `listener`: the listener, if it is known; `has_entry`: the client had an
 * entry. */
static __always_inline int begin(struct __sk_buff *skb, const struct headers *head, const struct evk_address *client,
				 struct evk_listener *listener, int has_entry, __u64 now)
{
	struct evk_draft *draft = find_draft();
	if (!listener)
		listener = bpf_map_lookup_elem(&evk_listeners, &head->to);
	if (!listener || !draft)
		return TC_ACT_UNSPEC;
	__u64 *used;
	if (is_over_rate(client, &used, now))
		return pass(PASSED_RATE);
	draft->syn.tries = 0;
	if (keep_syn(skb, head, &draft->syn))
		return TC_ACT_UNSPEC;
	draft->connection.listener = head->to.ip;
	draft->connection.listener_port = head->to.port;
	if (listener->is_limited && !may_begin(client, draft, now))
		return pass(PASSED_LIMIT);
	struct bpf_fib_lookup fib;
	if (has_entry)
		clear_closed(client, draft);
	int outcome = prepare(skb, client, listener, draft, &fib, now);
	if (outcome)
		return pass(outcome);
	/* A SYN may have data, which the member need not take. */
	draft->connection.client_side.next += head->payload;
	/* The client may have a connection to another listener from this port. */
	if (enter(client, draft, listener->retries, BPF_NOEXIST, now)) {
		free_port(&draft->pair);
		return pass(PASSED_TABLE);
	}
	use_source(client, used, now);
	return send_to_member(skb, &fib, head, client, &draft->connection);
}

/* Leads a connection that its member does not accept to another member, which the draft then has. `grows`: the
 * packet gets the length of the client's SYN. Returns -1 if the connection cannot go to another one. */
static __always_inline int retry(struct __sk_buff *skb, const struct evk_address *client,
				 struct evk_connection *connection, struct evk_draft *draft, int grows,
				 struct bpf_fib_lookup *fib, __u64 now)
{
	struct evk_address to = { .ip = connection->listener, .port = connection->listener_port };
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &to);
	struct evk_syn *syn = bpf_map_lookup_elem(&evk_syns, client);
	if (!listener || !syn)
		return -1;
	__u64 began = connection->began_ns;
	__u32 tries = syn->tries, retries = listener->retries;
	if (tries >= retries || tries >= MAX_RETRIES)
		return -1;
	draft->syn = *syn;
	draft->syn.tried[tries] = connection->seat;
	draft->syn.tries = tries + 1;
	draft->connection.listener = to.ip;
	draft->connection.listener_port = to.port;
	fill_pair(&draft->old, connection);
	if (prepare(skb, client, listener, draft, fib, now))
		return -1;
	__u32 length = draft->syn.options_length;
	__u32 headers = is_ipv6(&client->ip) ? HEADERS6 : HEADERS;
	/* Another CPU may do the same. */
	if ((grows && (length > OPTIONS || bpf_skb_change_tail(skb, headers + length, 0))) ||
	    !end_connection(client, connection, END_REFUSED, now) || !claim_entry(connection, began)) {
		free_port(&draft->pair);
		return -1;
	}
	if (enter(client, draft, retries, BPF_ANY, now)) {
		connection->began_ns = began;
		free_port(&draft->pair);
		return -1;
	}
	free_port(&draft->old);
	count(RETRIED);
	return 0;
}

/* Addresses and length in the checksum of TCP. Addresses of IPv4 are as in the tables: the difference of two sums is
 * the same. */
struct pseudo_header {
	struct evk_ip from, to;
	__be32 length;
	__be32 zero;
};

/* Makes the IP header of a RST that of the client's SYN for the draft's member. */
static __always_inline int change_ipv4_to_syn(struct __sk_buff *skb, const struct evk_address *client,
					      const struct evk_draft *draft, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 20 > end)
		return -1;
	struct iphdr *ip = data + IP_AT;
	ip->saddr = client->ip.word[3];
	ip->daddr = draft->connection.member.word[3];
	ip->tos = draft->syn.tos;
	ip->tot_len = bpf_htons(40 + length);
	ip->ttl -= 1;
	ip->check = 0;
	__u32 sum = bpf_csum_diff(0, 0, (void *)ip, 20, 0);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	return 0;
}

/* The same for IPv6. `change` is the difference of the addresses. */
static __always_inline int change_ipv6_to_syn(struct __sk_buff *skb, const struct evk_address *client,
					      const struct evk_draft *draft, __u32 length, __s64 change)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 40 > end)
		return -1;
	struct ipv6hdr *ip = data + IP_AT;
	/* Version, class and label; length, protocol and lifetime. */
	__be32 *first = (void *)ip;
	__be32 old[2] = { first[0], first[1] };
	first[0] = bpf_htonl(6 << 28 | (__u32)draft->syn.tos << 20);
	ip->payload_len = bpf_htons(20 + length);
	ip->hop_limit -= 1;
	__builtin_memcpy(&ip->saddr, &client->ip, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &draft->connection.member, sizeof(ip->daddr));
	__be32 next[2] = { first[0], first[1] };
	bpf_csum_update(skb, bpf_csum_diff(old, sizeof(old), next, sizeof(next), change));
	return 0;
}

/* Makes the client's SYN for the draft's member of a RST, which has room for it, and sends the SYN. The checksums are
 * changed and not computed, as a part may be left to the interface. */
__attribute__((noinline)) int evk_send_syn(struct __sk_buff *skb)
{
	struct evk_draft *draft = find_draft();
	if (!draft)
		return TC_ACT_SHOT;
	const struct evk_address *client = &draft->sender;
	__u32 length = draft->syn.options_length;
	if (length > OPTIONS)
		return TC_ACT_SHOT;
	shift_syn(draft);
	int is6 = has_ipv6(skb);
	__u32 tcp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + tcp_at + 20 > end)
		return TC_ACT_SHOT;
	struct tcphdr *tcp = data + tcp_at;
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
	*tcp = syn;
	__s64 change = bpf_csum_diff((void *)&old, sizeof(old), (void *)&syn, sizeof(syn), 0);
	struct pseudo_header pseudo = { .from = draft->from, .to = draft->to, .length = bpf_htonl(20) };
	__s64 pseudo_change = bpf_csum_diff((void *)&pseudo, sizeof(pseudo), 0, 0, 0);
	pseudo.from = client->ip;
	pseudo.to = draft->connection.member;
	__s64 addresses = bpf_csum_diff((void *)&draft->from, sizeof(struct evk_ip), (void *)&pseudo.from,
					sizeof(struct evk_ip), 0);
	addresses = bpf_csum_diff((void *)&draft->to, sizeof(struct evk_ip), (void *)&pseudo.to,
				  sizeof(struct evk_ip), addresses);
	pseudo.length = bpf_htonl(20 + length);
	pseudo_change = bpf_csum_diff(0, 0, (void *)&pseudo, sizeof(pseudo), pseudo_change);
	if (is6 ? change_ipv6_to_syn(skb, client, draft, length, addresses) :
		  change_ipv4_to_syn(skb, client, draft, length))
		return TC_ACT_SHOT;
	if (is_within(&length, 1, OPTIONS)) {
		change = bpf_csum_diff(0, 0, (void *)draft->syn.options, length, change);
		if (bpf_skb_store_bytes(skb, tcp_at + 20, draft->syn.options, length, 0))
			return TC_ACT_SHOT;
	}
	bpf_l4_csum_replace(skb, tcp_at + CHECK_AT, 0, change, 0);
	bpf_l4_csum_replace(skb, tcp_at + CHECK_AT, 0, pseudo_change, BPF_F_PSEUDO_HDR);
	count(FORWARDED_TO_MEMBER);
	return redirect(&draft->fib);
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

/* Distance of the numbers of a client's packets with direct answers, at most: what is in flight to and from a client. */
#define DIRECT_WINDOW (1U << 26)

/* Follows a client's packet with direct answers, of which the member's half is not seen: a stranger who does not know
 * the client's numbers must guess them. The first acknowledgement shows that the member has accepted; further ones, how
 * much of the member's data has come. The client's FIN ends the connection. `is_middle`: the packet neither accepts nor ends,
 * and so the stack need not have room for that. */
static __always_inline void follow_direct(const struct headers *head, const struct evk_address *client,
					  struct evk_connection *connection, int is_middle, __u64 now)
{
	struct evk_side *side = &connection->client_side;
	if (!head->ack || head->syn)
		return;
	if (!is_middle && !(connection->flags & ESTABLISHED)) {
		/* `acked` is behind the SYN, and `next` behind its data. */
		if (head->sequence - side->acked > side->next - side->acked)
			return;
		side->acked = head->answered;
		__u32 before = __sync_fetch_and_or(&connection->flags, ESTABLISHED | CONFIRMED);
		if (!(before & ESTABLISHED)) {
			__u32 seat = connection->seat;
			struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
			bpf_map_delete_elem(&evk_syns, client);
			if (counts) {
				__sync_fetch_and_add(&counts->handshakes, 1);
				__sync_fetch_and_add(&counts->handshake_ns, now - connection->began_ns);
			}
			count_confirmation(client, connection, before, now);
			tell(EVENT_CONFIRM, 0, client, connection, now);
		}
	}
	__u32 end = head->sequence + head->payload + head->fin;
	__u32 behind = end - side->next, acknowledged = head->answered - side->acked;
	/* Copies, and packets that others have overtaken, are beyond the window. Before a packet others may be missing,
	 * or acknowledgements, and hardly ever many of both. */
	int is_ahead = behind > head->payload + head->fin;
	if (behind > DIRECT_WINDOW || acknowledged > DIRECT_WINDOW || (is_ahead && acknowledged > OVERTAKEN))
		return;
	side->acked = head->answered;
	side->next = end;
	__sync_fetch_and_add(&connection->bytes_out, acknowledged);
	if (!is_middle && head->fin && behind <= head->payload + OVERTAKEN)
		end_connection(client, connection, END_CLOSED, now);
}

#include "copies.bpf.h"

/* True if a packet is one of the middle of a connection: nothing of it is news for the balancer. */
static __always_inline int is_in_middle(const struct evk_connection *connection, const struct headers *head,
					int is_of_client)
{
	__u32 flags = connection->flags;
	__u32 of_copies = COPIED | LOOSE_CLIENT | LOOSE_MEMBER;
	if (head->syn || head->fin || head->rst || !head->ack)
		return 0;
	if ((flags & (ESTABLISHED | CONFIRMED | CLOSED | of_copies)) != (ESTABLISHED | CONFIRMED))
		return 0;
	return is_of_client || !head->payload || flags & ANSWERED;
}

/* Notes that a packet of a connection has come. Few packets change the time, and so the memory that CPUs share. */
static __always_inline void note_packet(struct evk_connection *connection)
{
	__u32 seen = coarse(bpf_ktime_get_coarse_ns());
	if (connection->seen != seen)
		connection->seen = seen;
}

/* Kinds of packets of TCP. */
enum kind {
	MIDDLE, /* all others */
	FIRST,	/* SYN without an acknowledgement */
	RESET,	/* RST */
};

/* Forwards a packet of a client. `now` is 0 in the middle of a connection: the clock is read if the time is needed. */
static __always_inline int to_member(struct __sk_buff *skb, const struct headers *head,
				     const struct evk_address *client,
				     struct evk_connection *connection, enum kind kind, __u64 now)
{
	int is_direct = connection->flags & DIRECT;
	struct bpf_fib_lookup fib;
	/* A SYN with another number soon after the first one is a stranger's. */
	if (kind == FIRST && !(connection->flags & ESTABLISHED) && now >= connection->began_ns + AGAIN_NS) {
		struct evk_draft *draft = find_draft();
		struct evk_syn *syn = bpf_map_lookup_elem(&evk_syns, client);
		if (head->sequence + 1 != connection->client_side.acked) {
			connection->client_side.acked = head->sequence + 1;
			connection->client_side.next = head->sequence + 1 + head->payload;
			if (syn && keep_syn(skb, head, syn))
				return drop();
		} else if (draft && (!is_direct || now >= connection->began_ns + DIRECT_AGAIN_NS) &&
			   !retry(skb, client, connection, draft, 0, &fib, now)) {
			return send_to_member(skb, &fib, head, client, &draft->connection);
		}
	}
	const struct evk_ip *sender = connection->source_port ? &connection->source : &client->ip;
	/* A tunnel has a way of its own. */
	if (!(connection->flags & TUNNEL) &&
	    (find_way(skb, &fib, sender, &connection->member, head->tos) != FOUND ||
	     (is_direct && !is_neighbour(&fib, &connection->member))))
		return drop();
	note_packet(connection);
	if (head->payload)
		__sync_fetch_and_add(&connection->bytes_in, head->payload);
	if (connection->flags & (COPIED | LOOSE_CLIENT))
		take_over(head, client, connection, LOOSE_CLIENT, now);
	struct evk_side *side = &connection->client_side, *other = &connection->member_side;
	if (connection->flags & COPIED) {
		/* The packet does not show that the connection is this balancer's. */
	} else if (kind == RESET) {
		if (connection->flags & ESTABLISHED && !is_direct ? is_valid_reset(head, side, other) :
								    head->sequence == side->next) {
			forget_syn(client, connection);
			end_connection(client, connection, END_CLIENT_RESET, now);
		} else {
			count(STRAY_RESETS);
		}
	} else if (kind == FIRST) {
		/* A SYN that comes again. */
	} else if (is_direct) {
		follow_direct(head, client, connection, 0, now);
	} else if (connection->flags & ESTABLISHED) {
		__u32 before = side->next;
		int is_new = follow(head, side, other);
		if (head->payload && side->next != before)
			note_question(connection, head->psh, head->answered == other->next, now);
		/* With the number that the member has chosen, exactly. */
		if (is_new && !(connection->flags & CONFIRMED) && head->answered == side->acked) {
			__u32 before = __sync_fetch_and_or(&connection->flags, CONFIRMED);
			if (!(before & CONFIRMED))
				count_confirmation(client, connection, before, now);
		}
		if (head->fin && is_new &&
		    __sync_fetch_and_or(&connection->flags, CLIENT_FIN) & MEMBER_FIN)
			end_connection(client, connection, END_CLOSED, now);
	}
	return send_to_member(skb, &fib, head, client, connection);
}

/* Sends on a packet of a member to the client that the balancer's machine gets as the member's router, though the member
 * answers directly: the stack would drop the packet, as its sender has an address of this machine. */
static __always_inline int relay_to_client(struct __sk_buff *skb, const struct headers *head,
					   struct evk_connection *connection)
{
	struct bpf_fib_lookup fib;
	enum way way = find_way(skb, &fib, &head->from.ip, &head->to.ip, head->tos);
	if (way == TOO_LARGE && head->keeps_whole)
		return pass(PASSED_TOO_LARGE);
	if (way != FOUND)
		return drop();
	note_packet(connection);
	count(FORWARDED_TO_CLIENT);
	return send(skb, &fib, head, &head->from.ip, head->from.port, &head->to.ip, head->to.port, 0, 0);
}

/* Forwards a packet of a member. `now` as in `to_member`. */
static __always_inline int to_client(struct __sk_buff *skb, const struct headers *head,
				     const struct evk_address *client,
				     struct evk_connection *connection, enum kind kind, __u64 now)
{
	struct bpf_fib_lookup fib;
	struct evk_ip listener = connection->listener;
	__u32 seat = connection->seat;
	__u16 port = connection->listener_port;
	/* Only a RST without more has a checksum of which the change is known. */
	if (kind == RESET && head->ack && !head->payload && !head->options_length &&
	    !(connection->flags & (ESTABLISHED | CLOSED)) && head->answered == connection->client_side.next) {
		struct evk_draft *draft = find_draft();
		if (draft && !retry(skb, client, connection, draft, 1, &draft->fib, now)) {
			draft->from = head->from.ip;
			draft->to = head->to.ip;
			return SEND_SYN;
		}
	}
	enum way way = find_way(skb, &fib, &listener, &client->ip, head->tos);
	/* The system tells the member, and does not send the packet on. */
	if (way == TOO_LARGE && head->keeps_whole)
		return pass(PASSED_TOO_LARGE);
	if (way != FOUND)
		return drop();
	note_packet(connection);
	if (head->payload)
		__sync_fetch_and_add(&connection->bytes_out, head->payload);
	if (connection->flags & (COPIED | LOOSE_MEMBER))
		take_over(head, client, connection, LOOSE_MEMBER, now);
	__u32 flags = connection->flags;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	__u64 took = now - connection->began_ns;
	struct evk_side *side = &connection->member_side, *other = &connection->client_side;
	if (flags & COPIED) {
		/* As in `to_member`. */
	} else if (kind == RESET) {
		if (!(flags & ESTABLISHED) && head->answered == other->next) {
			forget_syn(client, connection);
			end_connection(client, connection, END_REFUSED, now);
		} else if (flags & ESTABLISHED && is_valid_reset(head, side, other)) {
			end_connection(client, connection, END_RESET, now);
		} else {
			count(STRAY_RESETS);
		}
	} else if (kind == MIDDLE) {
		__u32 before = side->next;
		int is_new = flags & ESTABLISHED && follow(head, side, other);
		if (head->payload && flags & ESTABLISHED && side->next != before)
			note_answer(connection, counts, head->answered == other->next, now);
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
			if (is_needed(EVENT_ACCEPT))
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
	return send(skb, &fib, head, &listener, port, &client->ip, client->port, 0,
		    connection->source_port ? connection->shift : 0);
}

#include "find.bpf.h"

/* Makes sure that the first bytes of a packet can be read. Returns -1 if the packet is shorter. */
static __always_inline int pull(struct __sk_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + length <= end)
		return 0;
	return skb->len < length || bpf_skb_pull_data(skb, length) ? -1 : 0;
}

/* What the header of IPv4 or IPv6 says. */
enum content { OTHER, TCP, UDP, ERROR, ODD };

/* True if a packet of this protocol can belong to a client of a listener. */
static __always_inline int is_of_listeners(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Content of a packet of one of the protocols that are known here. */
static __always_inline enum content find_content(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? TCP : protocol == IPPROTO_UDP ? UDP : ERROR;
}

/* Reads the header of IPv4. */
static __always_inline enum content read_ipv4(struct __sk_buff *skb, struct headers *head, __u32 *length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 20 > end)
		return OTHER;
	struct iphdr *ip = data + IP_AT;
	if (ip->version != 4 || ip->ttl <= 1 || (!is_of_listeners(ip->protocol) && ip->protocol != IPPROTO_ICMP))
		return OTHER;
	/* Ports are elsewhere, or not there: the stack knows what to do. */
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return is_of_listeners(ip->protocol) ? ODD : OTHER;
	map_ipv4(&head->from.ip, ip->saddr);
	map_ipv4(&head->to.ip, ip->daddr);
	head->tos = ip->tos;
	head->keeps_whole = !!(ip->frag_off & bpf_htons(0x4000));
	__u32 total = bpf_ntohs(ip->tot_len);
	/* A large packet of several segments may say 0. */
	if (total == 0)
		total = skb->len - ETH_HLEN;
	if (total < 20 || total > skb->len - ETH_HLEN)
		return ODD;
	*length = total - 20;
	return find_content(ip->protocol);
}

/* True if a header of IPv6 is followed by another one before the payload: hop-by-hop options, routing, fragment,
 * authentication, destination options. */
static __always_inline int is_extension(__u8 header)
{
	return header == 0 || header == 43 || header == 44 || header == 51 || header == 60;
}

/* Reads the header of IPv6. */
static __always_inline enum content read_ipv6(struct __sk_buff *skb, struct headers *head, __u32 *length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 48 > end)
		return OTHER;
	struct ipv6hdr *ip = data + IP_AT;
	if (ip->version != 6 || ip->hop_limit <= 1)
		return OTHER;
	/* Ports are elsewhere, or not there: the stack knows what to do. */
	if (is_extension(ip->nexthdr))
		return is_of_listeners(*(__u8 *)(ip + 1)) ? ODD : OTHER;
	if (!is_of_listeners(ip->nexthdr) && ip->nexthdr != IPPROTO_ICMPV6)
		return OTHER;
	copy_ipv6(&head->from.ip, &ip->saddr);
	copy_ipv6(&head->to.ip, &ip->daddr);
	head->is_ipv6 = 1;
	head->keeps_whole = 1;
	head->tos = bpf_ntohl(*(__be32 *)ip) >> 20;
	*length = bpf_ntohs(ip->payload_len);
	if (*length == 0)
		*length = skb->len - ETH_HLEN - 40;
	if (*length > skb->len - ETH_HLEN - 40)
		return ODD;
	/* An address of IPv4 has no business here, and would be one in the tables. */
	if (!is_ipv6(&head->from.ip) || !is_ipv6(&head->to.ip))
		return OTHER;
	return find_content(ip->nexthdr);
}

/* Takes what the header of TCP says, of a packet with this length from there on. Returns -1 if its lengths are wrong. */
static __always_inline int take_tcp(const struct tcphdr *tcp, struct headers *head, __u32 length)
{
	__u32 offset = tcp->doff * 4;
	if (offset < 20 || length < offset)
		return -1;
	head->from.port = tcp->source;
	head->to.port = tcp->dest;
	head->payload = length - offset;
	head->options_length = offset - 20;
	head->sequence = bpf_ntohl(tcp->seq);
	head->answered = bpf_ntohl(tcp->ack_seq);
	head->window = bpf_ntohs(tcp->window);
	head->syn = tcp->syn;
	head->ack = tcp->ack;
	head->fin = tcp->fin;
	head->rst = tcp->rst;
	head->psh = tcp->psh;
	return 0;
}

/* Reads the header of TCP. Returns -1 if its lengths are wrong. */
static __always_inline int read_tcp(struct __sk_buff *skb, struct headers *head, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 tcp_at = head->is_ipv6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	if (data + tcp_at + 20 > end)
		return -1;
	return take_tcp(data + tcp_at, head, length);
}

/* Bytes of TCP or UDP that an error quotes at least: ports first. */
#define QUOTED 8

/* Reads the addresses of the packet that an error of ICMP with this length quotes. Returns -1 if the message is no error,
 * or quotes no packet of the protocol whose ports can be found: bytes behind the message are none of it. */
static __always_inline int read_error(struct __sk_buff *skb, int is6, __u32 length, __u8 protocol,
				      struct evk_address *from, struct evk_address *to)
{
	__u32 icmp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	__u32 inner_at = icmp_at + 8, tcp_at = is6 ? inner_at + 40 : inner_at + 20;
	if (length < tcp_at + QUOTED - icmp_at || pull(skb, tcp_at + QUOTED))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + tcp_at + QUOTED > end)
		return -1;
	__u8 type = *(__u8 *)(data + icmp_at);
	if (is6) {
		struct ipv6hdr *inner = data + inner_at;
		/* No answer, too large, lifetime, header. */
		if (type < 1 || type > 4 || inner->version != 6 || inner->nexthdr != protocol)
			return -1;
		copy_ipv6(&from->ip, &inner->saddr);
		copy_ipv6(&to->ip, &inner->daddr);
		if (!is_ipv6(&from->ip) || !is_ipv6(&to->ip))
			return -1;
	} else {
		struct iphdr *inner = data + inner_at;
		if ((type != 3 && type != 11 && type != 12) || inner->version != 4 || inner->ihl != 5 ||
		    inner->protocol != protocol || inner->frag_off & bpf_htons(0x1fff))
			return -1;
		map_ipv4(&from->ip, inner->saddr);
		map_ipv4(&to->ip, inner->daddr);
	}
	from->port = *(__u16 *)(data + tcp_at);
	to->port = *(__u16 *)(data + tcp_at + 2);
	return 0;
}

/* Changes an address and a port of the packet that an error quotes. `is_source`: those of the sender. */
static __always_inline int change_quoted(struct __sk_buff *skb, int is_source, const struct evk_address *old,
					 const struct evk_address *next)
{
	int is6 = is_ipv6(&next->ip);
	__u32 icmp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	__u32 inner_at = icmp_at + 8, tcp_at = is6 ? inner_at + 40 : inner_at + 20;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + tcp_at + QUOTED > end)
		return -1;
	*(__u16 *)(data + (is_source ? tcp_at : tcp_at + 2)) = next->port;
	if (is6) {
		struct ipv6hdr *inner = data + inner_at;
		__builtin_memcpy(is_source ? &inner->saddr : &inner->daddr, &next->ip, sizeof(next->ip));
		bpf_l4_csum_replace(skb, icmp_at + 2, 0, compare_addresses(&old->ip, &next->ip), 0);
	} else {
		struct iphdr *inner = data + inner_at;
		if (is_source)
			inner->saddr = next->ip.word[3];
		else
			inner->daddr = next->ip.word[3];
		/* The checksum of the quoted header balances the address in the one of the message. */
		bpf_l3_csum_replace(skb, inner_at + 10, old->ip.word[3], next->ip.word[3], 4);
	}
	bpf_l4_csum_replace(skb, icmp_at + 2, old->port, next->port, 2);
	return 0;
}

/* Forwards an error of ICMP about a packet of a connection, with the addresses that its sender knows. The receiver
 * compares the quoted sequence number with what it has sent. */
__attribute__((noinline)) int evk_forward_error(struct __sk_buff *skb)
{
	int is6 = has_ipv6(skb);
	struct headers head = {};
	__u32 length = 0;
	enum content content = is6 ? read_ipv6(skb, &head, &length) : read_ipv4(skb, &head, &length);
	struct evk_address from = {}, to = {}, next = {};
	if (content != ERROR || read_error(skb, is6, length, IPPROTO_TCP, &from, &to) || !is_equal(&from.ip, &head.to.ip))
		return TC_ACT_UNSPEC;
	struct evk_ip receiver = from.ip;
	/* A packet of the client to the member: the client knows the listener. */
	struct evk_address *client = &from;
	struct evk_connection *connection = find_of_member(client, &to);
	if (!connection) {
		client = find_client(&from, &to);
		connection = client ? find_of_member(client, &to) : 0;
	}
	int of_client = !!connection;
	if (connection) {
		/* Until the member accepts, the client goes on, and another member may get the connection. */
		if (!(connection->flags & ESTABLISHED))
			return TC_ACT_UNSPEC;
		next.ip = connection->listener;
		next.port = connection->listener_port;
		receiver = client->ip;
	} else {
		connection = find_of_client(&to, &from);
		if (!connection)
			return forward_by_row(skb, &to, &from, 1);
		if (connection->flags & TUNNEL) {
			count(ERRORS);
			return aim_at_member(&to, connection);
		}
		receiver = connection->member;
		next = from;
		if (!(connection->flags & DIRECT)) {
			next.ip = connection->member;
			next.port = connection->member_port;
		}
	}
	struct bpf_fib_lookup fib;
	if (find_way(skb, &fib, &head.from.ip, &receiver, head.tos) != FOUND)
		return TC_ACT_UNSPEC;
	if (of_client ? change_quoted(skb, 0, &to, &next) : change_quoted(skb, 1, &from, &next))
		return TC_ACT_SHOT;
	if (connection->source_port) {
		if (of_client) {
			next = *client;
		} else {
			next.ip = connection->source;
			next.port = connection->source_port;
		}
		if (of_client ? change_quoted(skb, 1, &from, &next) : change_quoted(skb, 0, &to, &next))
			return TC_ACT_SHOT;
	}
	/* With direct answers both sides have the addresses of the packet. */
	if (connection->flags & DIRECT)
		receiver = from.ip;
	if (is6 ? change_ipv6(skb, 0, &receiver, ETH_HLEN + 40 + 2) :
		  change_ipv4(skb, 0, receiver.word[3], 0))
		return TC_ACT_SHOT;
	count(ERRORS);
	return redirect(&fib);
}

/* Forwards a packet of TCP, of the kind that its flags say. */
static __always_inline int forward_tcp(struct __sk_buff *skb, enum kind kind)
{
	int is6 = has_ipv6(skb);
	struct headers head = {};
	__u32 length = 0;
	enum content content = is6 ? read_ipv6(skb, &head, &length) : read_ipv4(skb, &head, &length);
	if (content != TCP && content != ODD)
		return TC_ACT_UNSPEC;
	if (content == ODD || read_tcp(skb, &head, length))
		return pass(PASSED_ODD);
	if (head.syn && (head.fin || head.rst))
		return TC_ACT_UNSPEC;
	int begins = kind == FIRST;
	struct found found;
	find_connection(&head, &found, begins);
	struct evk_connection *connection = found.connection;
	/* The client may use the port of a connection that is over again. */
	if (!connection || (found.is_of_client && begins && connection->flags & CLOSED))
		return begins ? begin(skb, &head, &head.from, found.listener, !!found.entry, bpf_ktime_get_ns()) :
				forward_by_row(skb, &head.from, &head.to, 0);
	__u64 now = kind == MIDDLE && is_in_middle(connection, &head, found.is_of_client) ? 0 : bpf_ktime_get_ns();
	if (found.is_of_client)
		return to_member(skb, &head, &head.from, connection, kind, now);
	if (connection->flags & DIRECT)
		return relay_to_client(skb, &head, connection);
	return to_client(skb, &head, found.client, connection, kind, now);
}

/* Functions of their own, which the verifier checks once, and with less on the stack than together: most packets need the
 * first one only. */
__attribute__((noinline)) int evk_forward_middle(struct __sk_buff *skb)
{
	return forward_tcp(skb, MIDDLE);
}

__attribute__((noinline)) int evk_forward_first(struct __sk_buff *skb)
{
	return forward_tcp(skb, FIRST);
}

__attribute__((noinline)) int evk_forward_reset(struct __sk_buff *skb)
{
	return forward_tcp(skb, RESET);
}

#include "udp.bpf.h"
#include "trace.bpf.h"

/* Forwards a packet of IPv4 that is shorter than a header of UDP: the last fragment of a datagram may be. */
static __always_inline int forward_short(struct __sk_buff *skb)
{
	if (pull(skb, IP_AT + 20))
		return TC_ACT_UNSPEC;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_AT;
	if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP || !(ip->frag_off & bpf_htons(0x1fff)))
		return TC_ACT_UNSPEC;
	return evk_forward_udp(skb);
}

/* Finds the kind of a packet of TCP, of which the header can be read. */
static __always_inline enum kind find_kind(struct __sk_buff *skb, int is6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = data + (is6 ? HEADERS6 : HEADERS) - sizeof(*tcp);
	if ((void *)(tcp + 1) > end)
		return MIDDLE;
	return tcp->rst ? RESET : tcp->syn && !tcp->ack ? FIRST : MIDDLE;
}

/* Forwards a packet. The functions for each protocol have stacks of their own: together these are beyond the limit. */
static __always_inline int forward(struct __sk_buff *skb)
{
	__u16 protocol = skb->protocol;
	if ((protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6)) || skb->vlan_present)
		return TC_ACT_UNSPEC;
	int is6 = protocol == bpf_htons(ETH_P_IPV6);
	/* UDP and ICMP have the shortest headers. */
	if (pull(skb, IP_AT + (is6 ? 40 : 20) + 8))
		return is6 ? TC_ACT_UNSPEC : forward_short(skb);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + IP_AT + 20 + 8 > end)
		return TC_ACT_UNSPEC;
	__u8 payload = is6 ? ((struct ipv6hdr *)(data + IP_AT))->nexthdr : ((struct iphdr *)(data + IP_AT))->protocol;
	if (payload == (is6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		int answer = evk_forward_error(skb);
		return answer == TC_ACT_UNSPEC ? evk_forward_udp_error(skb) : answer;
	}
	/* Fragments of IPv6 may be those of a datagram. */
	if (payload == IPPROTO_UDP || (is6 && payload == IPPROTO_FRAGMENT))
		return evk_forward_udp(skb);
	if (pull(skb, is6 ? HEADERS6 : HEADERS))
		return TC_ACT_UNSPEC;
	if (payload != IPPROTO_TCP && (!is6 || !is_extension(payload)))
		return TC_ACT_UNSPEC;
	enum kind kind = find_kind(skb, is6);
	return kind == MIDDLE ? evk_forward_middle(skb) : kind == FIRST ? evk_forward_first(skb) : evk_forward_reset(skb);
}

SEC("tc")
int evk_forward(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct evk_trace *trace = bpf_map_lookup_elem(&evk_trace, &zero);
	int has_trace = trace && trace->until_ns && begin_trace(skb);
	int answer = forward(skb);
	if (answer == SEND_BY_TUNNEL)
		answer = evk_send_by_tunnel(skb);
	else if (answer == SEND_SYN)
		answer = evk_send_syn(skb);
	if (has_trace)
		end_trace(skb, answer);
	return answer;
}

#include "xdp.bpf.h"

/* Chooses a seat of a group without a packet: for tests. */
struct evk_question {
	__u32 group;
	__u32 tries; /* number of seats that are excluded */
	struct evk_address client;
	__u16 tried[MAX_RETRIES];
	__u32 zero;
};

SEC("syscall")
int evk_choose(struct evk_question *question)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!best)
		return -2;
	best->tries = question->tries;
	__builtin_memcpy(best->tried, question->tried, sizeof(best->tried));
	__builtin_memcpy(&best->client, &question->client, sizeof(best->client));
	best->is_ipv6 = is_ipv6(&best->client.ip);
	return choose_seat(question->group);
}

/* Removal of a connection that is over, or that was silent for too long. */
struct evk_removal {
	struct evk_address client;
	__u32 seen; /* not if a packet has come since */
	__u32 zero;
};

/* Connections that are removed by a run, at most: the result has a bit for each. */
#define REMOVALS 32

/* Removals of a run, written by the balancer. */
struct evk_removals {
	struct evk_removal all[REMOVALS];
	__u32 removed; /* a bit for each that was removed */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_removals);
} evk_removals SEC(".maps");

/* Removes the connection of a removal. A function of its own, which the verifier checks once. Returns 1 if the connection was
 * removed, which is noted, too. */
__attribute__((noinline)) int evk_remove_one(__u32 number)
{
	__u32 zero = 0;
	struct evk_removals *removals = bpf_map_lookup_elem(&evk_removals, &zero);
	if (!removals)
		return 0;
	const struct evk_removal *removal = &removals->all[number & (REMOVALS - 1)];
	struct evk_address client = removal->client;
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, &client);
	__u64 began = connection ? connection->began_ns : 0;
	if (!connection || connection->seen != removal->seen)
		return 0;
	__u16 end = connection->flags & ESTABLISHED ? END_CLOSED : END_REFUSED;
	forget_syn(&client, connection);
	end_connection(&client, connection, end, bpf_ktime_get_ns());
	/* Not in the draft: a packet may come meanwhile. */
	struct evk_nat_pair pair;
	if (!delete_entry(&client, connection, began, &pair))
		return 0;
	removals->removed |= 1U << (number & (REMOVALS - 1));
	return 1;
}

struct evk_removal_order {
	__u32 count;
	__u32 zero;
};

/* Removes connections. Returns a bit for each one that was removed. */
SEC("syscall")
int evk_remove(struct evk_removal_order *order)
{
	__u32 count = order->count, zero = 0;
	struct evk_removals *removals = bpf_map_lookup_elem(&evk_removals, &zero);
	if (!removals)
		return 0;
	/* In memory: the verifier of Linux 6.1 would follow each value that a variable may have. */
	removals->removed = 0;
	for (__u32 i = 0; i < REMOVALS; i++) {
		if (i >= count)
			break;
		evk_remove_one(i);
	}
	return removals->removed;
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

/* Corrects a member's requests without an answer. */
struct evk_request_correction {
	__u32 seat;
	__u32 zero;
	__u64 by;
};

SEC("syscall")
int evk_correct_requests(struct evk_request_correction *correction)
{
	__u32 seat = correction->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts)
		__sync_fetch_and_add(&counts->awaited, correction->by);
	return 0;
}
