/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Sessions of UDP: a part of forward.bpf.c.
 *
 * A session has the datagrams between a client and a listener's address. The table evk_udp_clients has the session of a
 * client that further datagrams belong to, and evk_udp_sessions has all sessions by the addresses that the member's datagrams
 * have. A session that leaves its member is no longer the client's, but answers under way still find it. A session may also
 * have a single datagram (datagrams.bpf.h).
 * Datagrams of clients in evk_udp_kept pass to the rule's socket: the process has their sessions. Connection ids of QUIC lead
 * clients whose address has changed to their members (quic.bpf.h). Fragments of a datagram follow the first one
 * (fragments.bpf.h). Members that answer clients themselves get datagrams unchanged (udp_direct.bpf.h).
 * src/forward/udp.rs has the same structures. */

#include <linux/udp.h>

/* Flags of sessions, beside ANSWERED, CLOSED, CONFIRMED and COPIED. */
enum evk_udp_flag {
	LEAVES = 64,  /* the client's datagrams go to another member */
	FAILED = 128, /* an error of ICMP has said that nobody takes datagrams */
	QUIC = 256,   /* the member's connection ids count */
	NOTES_ID = 512, /* a CPU writes the session's id */
	SINGLE = 1024,	/* the session of a single datagram */
	TAKEN = 2048,	/* SINGLE: the session has ended, and is removed or replaced */
	UDP_DIRECT = 4096, /* the member has the listener's address, and its answers do not pass here */
};

/* Lengths of connection ids that tell connections apart: shorter ids are the same by chance, and version 1 of QUIC has no
 * longer ones. */
#define QUIC_MIN_ID 4
#define QUIC_MAX_ID 20

/* Connection id of QUIC that a member of a group has chosen. */
struct evk_quic_id {
	__u8 length; /* 0: none */
	__u8 zero;
	__u16 group;
	__u8 bytes[QUIC_MAX_ID]; /* the id, and zeros behind it */
};

/* Connection id at a listening address. The id has no group. */
struct evk_quic_place {
	struct evk_address listener;
	struct evk_quic_id id;
};

/* Session that an id belongs to: another session may have the same addresses later. */
struct evk_quic_owner {
	struct evk_nat_pair session;
	__u64 began_ns;
};

struct evk_udp_listener {
	__u32 group;
	__u16 retries;	  /* 0: a member that has failed may be chosen again at once */
	__u8 is_limited;  /* not 0: evk_limits has limits of the address */
	__u8 is_direct;	  /* not 0: members answer clients without the balancer */
	__u16 first_port; /* full NAT: ports towards members */
	__u16 ports;	  /* number of these ports; 0: half NAT */
	__u32 idle;	  /* time without a datagram after which a session is over, as `coarse` has it */
	__u32 answer;	  /* time for the first answer, likewise; 0: no answer is expected */
	__u16 is_quic;	  /* not 0: a client whose address changes stays at the member of its connection id */
	__u16 is_single;  /* not 0: each datagram is a session of its own */
};

struct evk_udp_client {
	struct evk_address client;
	struct evk_address listener;
};

struct evk_udp_session {
	/* The first three are as in evk_connection. */
	__u64 began_ns;
	__u32 seen;
	__u32 flags;
	struct evk_udp_client of;
	__u32 seat;
	/* QUIC: first bytes of the id that the client's last datagrams have. SINGLE: time for the answer, as `coarse` has
	 * it. */
	__u32 checked;
	__u64 bytes_in;
	__u64 bytes_out;
	__u64 datagrams_in;
	__u64 datagrams_out;
	struct evk_quic_id id; /* QUIC: an id of the session's client */
};

/* Sessions of a listening address, with the datagrams of those that have ended. */
struct evk_udp_counts {
	__u64 begun;
	__s64 open;
	__u64 bytes_in;
	__u64 bytes_out;
	__u64 datagrams_in;
	__u64 datagrams_out;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_address);
	__type(value, struct evk_udp_listener);
} evk_udp_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct evk_address);
	__type(value, struct evk_udp_counts);
} evk_udp_counts SEC(".maps");

/* No LRU, as for connections. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_udp_client);
	__type(value, struct evk_nat_pair);
} evk_udp_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_nat_pair);
	__type(value, struct evk_udp_session);
} evk_udp_sessions SEC(".maps");

/* Clients whose sessions the process has, with the time of the entry. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_udp_client);
	__type(value, __u64);
} evk_udp_kept SEC(".maps");

/* Part of a datagram that a packet has: the whole, or a fragment. `LATE_PART`: the first fragment of an answer that is
 * late. */
enum part { NO_PART, WHOLE, FIRST_PART, LATER_PART, LATE_PART };

/* Memory for a datagram: the stack has no room. */
struct evk_udp_draft {
	__u32 part;	 /* of `enum part` */
	__u32 is_single; /* of the listener */
	struct evk_udp_client who; /* client of the datagram */
	struct evk_nat_pair pair;  /* key of the session */
	struct evk_udp_session session;
	struct evk_address from, to; /* addresses that the datagram gets */
	struct evk_ip hop; /* address to which the datagram is sent: with direct answers the member's, and not that of `to` */
	struct evk_quic_id id;
	struct evk_quic_owner owner;
	struct evk_quic_place place;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_udp_draft);
} evk_udp_draft SEC(".maps");

static __always_inline struct evk_udp_draft *find_udp_draft(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_udp_draft, &zero);
}

static __always_inline int is_same_address(const struct evk_address *a, const struct evk_address *b)
{
	return is_equal(&a->ip, &b->ip) && a->port == b->port;
}

static __always_inline void tell_udp(__u16 kind, __u8 end, const struct evk_address *member,
				     const struct evk_udp_session *session, __u64 now)
{
	struct evk_event *event = bpf_ringbuf_reserve(&evk_events, sizeof(*event), 0);
	if (!event) {
		count(LOST_EVENTS);
		return;
	}
	event->member = *member;
	event->client = session->of.client;
	event->listener = session->of.listener;
	event->seat = session->seat;
	event->kind = kind;
	event->end = end;
	event->is_udp = session->flags & UDP_DIRECT ? UDP_UNSEEN : UDP_SEEN;
	event->began_ns = session->began_ns;
	event->ns = now;
	event->bytes_in = session->bytes_in;
	event->bytes_out = session->bytes_out;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* True if the time since `from`, as `coarse` has it, is longer than `limit`. */
static __always_inline int is_longer(__u64 now, __u32 from, __u32 limit)
{
	/* Another CPU may have a later clock. */
	__s32 silence = coarse(now) - from;
	return silence > 0 && (__u32)silence > limit;
}

/* Answer of `evk_udp_end` if limits count the session. */
#define ENDED_LIMITED 2

/* Ends a session once: 0 if it has ended before. The entry stays. A function of its own, which the verifier checks
 * once. */
__attribute__((noinline)) int evk_udp_end(const struct evk_nat_pair *which, __u32 end, __u64 now)
{
	if (!which)
		return 0;
	struct evk_nat_pair pair = *which;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &pair);
	/* A copy counts nowhere. */
	if (!session || session->flags & COPIED || __sync_fetch_and_or(&session->flags, CLOSED) & CLOSED)
		return 0;
	__u32 seat = session->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->in_flight, -1);
		__sync_fetch_and_add(&counts->bytes_in, session->bytes_in);
		__sync_fetch_and_add(&counts->bytes_out, session->bytes_out);
		if (end == END_SILENT || end == END_UNREACHABLE)
			__sync_fetch_and_add(&counts->refused, 1);
		else
			__sync_fetch_and_add(&counts->closed, 1);
	}
	struct evk_udp_counts *all = bpf_map_lookup_elem(&evk_udp_counts, &session->of.listener);
	if (all) {
		__sync_fetch_and_add(&all->open, -1);
		__sync_fetch_and_add(&all->bytes_in, session->bytes_in);
		__sync_fetch_and_add(&all->bytes_out, session->bytes_out);
		__sync_fetch_and_add(&all->datagrams_in, session->datagrams_in);
		__sync_fetch_and_add(&all->datagrams_out, session->datagrams_out);
	}
	/* An answered datagram no longer counts at its source, as a session whose client has confirmed. */
	if ((session->flags & (SINGLE | ANSWERED)) == (SINGLE | ANSWERED))
		give_back_to_source(&session->of.client);
	tell_udp(EVENT_END, end, &pair.member, session, now);
	return session->flags & LIMITED ? ENDED_LIMITED : 1;
}

/* Ends a session likewise, and the count of limits: a function of a function would be beyond the limit of the stack. */
static __always_inline int end_session(const struct evk_nat_pair *pair, __u32 end, __u64 now)
{
	int ended = evk_udp_end(pair, end, now);
	struct evk_udp_session *session = ended == ENDED_LIMITED ? bpf_map_lookup_elem(&evk_udp_sessions, pair) : 0;
	if (session)
		evk_limit_session(&session->of.client, &session->of.listener, LIMIT_END, session->began_ns);
	return ended;
}

#include "datagrams.bpf.h"

/* Reads the header of UDP. Returns -1 if its lengths are wrong, or the checksum is missing that IPv6 demands. */
static __always_inline int read_udp(struct __sk_buff *skb, struct headers *head, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 udp_at = head->is_ipv6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	if (data + udp_at + 8 > end)
		return -1;
	struct udphdr *udp = data + udp_at;
	__u32 size = bpf_ntohs(udp->len);
	if (size < 8 || size != length || !udp->source || (head->is_ipv6 && !udp->check))
		return -1;
	head->from.port = udp->source;
	head->to.port = udp->dest;
	head->payload = size - 8;
	return 0;
}

/* Offset of the checksum in the header of UDP. */
#define UDP_CHECK_AT 6

/* Gives a datagram the addresses and ports of the draft, and lowers the lifetime. A checksum of 0 stays: there is none.
 * Fragments behind the first one have no ports, and no checksum. Returns -1 if the packet is shorter than it says. */
__attribute__((noinline)) int evk_udp_translate(struct __sk_buff *skb)
{
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft)
		return -1;
	int is6 = is_ipv6(&draft->to.ip), has_ports = draft->part != LATER_PART;
	__u32 udp_at = !is6 ? ETH_HLEN + 20 : draft->part == FIRST_PART ? ETH_HLEN + 48 : ETH_HLEN + 40;
	__u32 check_at = udp_at + UDP_CHECK_AT;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + udp_at + (has_ports ? 8 : 0) > end)
		return -1;
	__u32 old_ports = 0, ports = draft->from.port | (__u32)draft->to.port << 16;
	if (has_ports) {
		struct udphdr *udp = data + udp_at;
		old_ports = udp->source | (__u32)udp->dest << 16;
		udp->source = draft->from.port;
		udp->dest = draft->to.port;
	}
	__u32 addresses = is6 ? write_addresses6(data + IP_AT, &draft->from.ip, &draft->to.ip) :
				write_addresses4(data + IP_AT, &draft->from.ip, &draft->to.ip);
	/* As in `evk_change`. */
	if (has_ports && addresses != 0xffffffff)
		bpf_l4_csum_replace(skb, check_at, 0, addresses, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	if (is6)
		correct_sum6(skb, addresses);
	if (has_ports && ports != old_ports)
		bpf_l4_csum_replace(skb, check_at, 0, fold32(0xffffffffULL - old_ports + ports),
				    BPF_F_MARK_MANGLED_0);
	return 0;
}

/* Sends a datagram to the draft's receiver. */
static __always_inline int send_datagram(struct __sk_buff *skb, const struct bpf_fib_lookup *fib, __u32 outcome)
{
	if (evk_udp_translate(skb))
		return drop();
	count(outcome);
	return redirect(fib);
}

/* Number of datagrams in a packet: several that the system has put together are one. */
static __always_inline __u32 count_datagrams(const struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs;
	return segments ? segments : 1;
}

/* Leaves a datagram of the draft's client to the rule's socket, with those that follow: the process begins a session. Where
 * each datagram is a session, those that follow are not concerned. */
static __always_inline int keep(const struct evk_udp_draft *draft, __u32 outcome, __u64 now)
{
	if (!draft->is_single)
		bpf_map_update_elem(&evk_udp_kept, &draft->who, &now, BPF_NOEXIST);
	return pass(outcome);
}

/* Enters the draft's session with a free port towards the member: of those that are free or have rested, nearly the one that
 * was free for longest. Returns an outcome if there is none. */
__attribute__((noinline)) int evk_udp_take_port(__u32 first, __u32 ports)
{
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft || !ports)
		return PASSED_PORTS;
	__u32 seat = draft->session.seat;
	__u32 *cursor = bpf_map_lookup_elem(&evk_nat_cursors, &seat);
	if (!cursor)
		return PASSED_PORTS;
	__u64 now = draft->session.began_ns;
	for (__u32 i = 0; i < PORT_TRIES; i++) {
		draft->pair.source.port = choose_port(cursor, i, first, ports);
		struct evk_udp_session *old = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
		if (old)
			end_forgotten(&draft->pair, old, now);
		if (old && !claim_rested(old, now))
			continue;
		long failed = bpf_map_update_elem(&evk_udp_sessions, &draft->pair, &draft->session,
						  old ? BPF_ANY : BPF_NOEXIST);
		if (!failed)
			return 0;
		if (old)
			__sync_fetch_and_and(&old->flags, ~TAKEN);
		if (failed != -EEXIST)
			return PASSED_TABLE;
	}
	return PASSED_PORTS;
}

/* Enters the draft's session, whose member sees the client. Another session of the client may have been at this member
 * before. Returns an outcome if there is no place. */
static __always_inline int enter_session(struct evk_udp_draft *draft, __u64 now)
{
	if (!bpf_map_update_elem(&evk_udp_sessions, &draft->pair, &draft->session, BPF_NOEXIST))
		return 0;
	struct evk_udp_session *other = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
	/* A session with another address of the balancer: the member could not tell the two apart. */
	if (!other || !is_same_address(&other->of.listener, &draft->who.listener))
		return PASSED_TABLE;
	end_session(&draft->pair, END_CLOSED, now);
	return bpf_map_update_elem(&evk_udp_sessions, &draft->pair, &draft->session, BPF_ANY) ? PASSED_TABLE : 0;
}

/* Chooses a member for the draft's client, but not the seat `failed` if there is another one. Returns as
 * `choose_seat`. */
static __always_inline int choose_for_session(struct evk_udp_draft *draft, __u32 group, int failed)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	if (!best)
		return -2;
	best->tries = failed >= 0;
	best->tried[0] = failed;
	best->is_ipv6 = is_ipv6(&draft->who.client.ip);
	best->client = draft->who.client;
	int chosen = choose_seat(group);
	if (chosen == -1 && failed >= 0) {
		best->tries = 0;
		chosen = choose_seat(group);
	}
	return chosen;
}

/* Counts a step of the draft's session, if sessions of the listener are limited. */
static __always_inline void count_limited(struct evk_udp_draft *draft, __u32 step)
{
	if (draft->session.flags & LIMITED)
		evk_limit_session(&draft->who.client, &draft->who.listener, step, draft->session.began_ns);
}

/* Counts a session that has begun. `used` as in `use_source`. */
static __always_inline void count_session(struct evk_udp_draft *draft, __u64 *used, __u64 now)
{
	__u32 seat = draft->session.seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->in_flight, 1);
		__sync_fetch_and_add(&counts->picks, 1);
	}
	struct evk_udp_counts *all = bpf_map_lookup_elem(&evk_udp_counts, &draft->who.listener);
	if (all) {
		__sync_fetch_and_add(&all->open, 1);
		__sync_fetch_and_add(&all->begun, 1);
	}
	count_limited(draft, LIMIT_BEGIN);
	tell_udp(EVENT_BEGIN, 0, &draft->pair.member, &draft->session, now);
	use_source(&draft->who.client, used, now);
}

/* True if the clients of a member go to other members. */
static __always_inline int must_leave(__u32 seat)
{
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	return terms && terms->leave;
}

#include "quic.bpf.h"
#include "udp_direct.bpf.h"

/* Begins a session of the draft's client with a datagram. */
static __always_inline int begin_session(struct __sk_buff *skb, const struct headers *head,
					 struct evk_udp_draft *draft, const struct evk_udp_listener *listener,
					 int failed, __u64 now)
{
	__u64 *used = 0;
	/* A message takes no place in the tables. */
	if (!has_messages(listener) && is_over_rate(&draft->who.client, &used, now))
		return keep(draft, PASSED_RATE, now);
	if (listener->is_limited && !evk_limit_session(&draft->who.client, &draft->who.listener, LIMIT_ADMIT, now))
		return keep(draft, PASSED_LIMIT, now);
	int by_id = find_by_id(skb, head, draft, listener);
	int chosen = by_id >= 0 ? by_id : choose_for_session(draft, listener->group, failed);
	if (chosen < 0)
		return chosen == -2 ? pass(PASSED_FORM) : keep(draft, PASSED_NO_ROOM, now);
	__u32 seat = chosen;
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_ip *address = bpf_map_lookup_elem(&evk_nat_addresses, &seat);
	if (!terms || !address)
		return pass(PASSED_FORM);
	struct evk_udp_session *session = &draft->session;
	__builtin_memset(session, 0, sizeof(*session));
	session->began_ns = now;
	session->seen = coarse(now);
	session->of = draft->who;
	session->seat = seat;
	session->bytes_in = head->payload;
	session->datagrams_in = count_datagrams(skb);
	if (listener->is_quic) {
		session->flags = QUIC;
		session->checked = read_quic_prefix(skb, head, draft);
		if (by_id >= 0)
			session->id = draft->id;
	}
	if (listener->is_single) {
		session->flags = SINGLE;
		session->checked = listener->answer;
	}
	if (listener->is_limited)
		session->flags |= LIMITED;
	if (listener->is_direct)
		session->flags |= WITHOUT_ANSWERS;
	draft->pair.member = terms->address;
	draft->pair.source = draft->who.client;
	if (listener->ports) {
		if (!address->half[0] && !address->half[1])
			return keep(draft, PASSED_ROUTE, now);
		draft->pair.source.ip = *address;
		draft->pair.source.port = 0;
	}
	struct bpf_fib_lookup fib;
	enum way way = find_way_for(skb, &fib, IPPROTO_UDP, &draft->pair.source.ip, &draft->pair.member.ip,
				    head->tos);
	if (way != FOUND)
		return keep(draft, way == TOO_LARGE ? PASSED_TOO_LARGE : PASSED_ROUTE, now);
	if (listener->is_direct && !is_neighbour(&fib, &draft->pair.member.ip))
		return keep(draft, PASSED_REMOTE, now);
	if (has_messages(listener)) {
		evk_udp_count_message(now);
		count_limited(draft, LIMIT_BEGIN);
		count_limited(draft, LIMIT_END);
	} else {
		int outcome = listener->ports ? evk_udp_take_port(listener->first_port, listener->ports) :
						enter_session(draft, now);
		if (outcome)
			return keep(draft, outcome, now);
		if (!listener->is_single &&
		    bpf_map_update_elem(&evk_udp_clients, &draft->who, &draft->pair, BPF_ANY)) {
			bpf_map_delete_elem(&evk_udp_sessions, &draft->pair);
			return keep(draft, PASSED_TABLE, now);
		}
		count_session(draft, used, now);
	}
	if (by_id >= 0)
		count(BY_ID);
	else
		evk_tell_decision(listener->group, seat, now);
	aim_at_pair(draft, session->flags);
	return send_datagram(skb, &fib, FORWARDED_TO_MEMBER);
}

/* Reason for which the draft's session is over at a datagram of the client, or -1. */
static __always_inline int find_end(const struct evk_udp_session *session,
				    const struct evk_udp_listener *listener, __u64 now)
{
	if (listener->answer && !(session->flags & ANSWERED) &&
	    is_longer(now, coarse(session->began_ns), listener->answer))
		return END_SILENT;
	return is_longer(now, session->seen, listener->idle) ? END_CLOSED : -1;
}

/* Forwards a datagram of the client in the draft's session. */
static __always_inline int continue_session(struct __sk_buff *skb, const struct headers *head,
					    struct evk_udp_draft *draft, struct evk_udp_session *session,
					    __u64 now)
{
	struct bpf_fib_lookup fib;
	enum way way = find_way_for(skb, &fib, IPPROTO_UDP, &draft->pair.source.ip, &draft->pair.member.ip,
				    head->tos);
	if (way == TOO_LARGE)
		return keep(draft, PASSED_TOO_LARGE, now);
	if (way != FOUND)
		return drop();
	session->seen = coarse(now);
	__sync_fetch_and_add(&session->bytes_in, head->payload);
	__sync_fetch_and_add(&session->datagrams_in, count_datagrams(skb));
	if (session->flags & ANSWERED && !(session->flags & CONFIRMED) &&
	    !(__sync_fetch_and_or(&session->flags, CONFIRMED) & CONFIRMED))
		give_back_to_source(&draft->who.client);
	aim_at_pair(draft, session->flags);
	return send_datagram(skb, &fib, FORWARDED_TO_MEMBER);
}

/* Counts the copy of another balancer's session as a session of this balancer, once. */
static __attribute__((noinline)) void adopt_session(const struct evk_address *member,
						    struct evk_udp_session *session, __u64 now)
{
	if (!(__sync_fetch_and_and(&session->flags, ~COPIED) & COPIED))
		return;
	__u32 seat = session->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts)
		__sync_fetch_and_add(&counts->in_flight, 1);
	struct evk_udp_counts *all = bpf_map_lookup_elem(&evk_udp_counts, &session->of.listener);
	if (all)
		__sync_fetch_and_add(&all->open, 1);
	if (evk_limit_session(&session->of.client, &session->of.listener, LIMIT_ADD, session->began_ns))
		__sync_fetch_and_or(&session->flags, LIMITED);
	tell_udp(EVENT_ADOPT, 0, member, session, now);
}

/* Forwards a datagram to a listener, or leaves it to the listener's socket. */
static __always_inline int serve_client(struct __sk_buff *skb, const struct headers *head,
					struct evk_udp_draft *draft, const struct evk_udp_listener *listener,
					__u64 now)
{
	draft->who.client = head->from;
	draft->who.listener = head->to;
	draft->is_single = listener->is_single;
	/* Of several datagrams that the system has put together, each one has an answer. */
	if (draft->is_single && listener->answer && skb->gso_size)
		return pass(PASSED_ODD);
	if (!draft->is_single && bpf_map_lookup_elem(&evk_udp_kept, &draft->who))
		return pass(PASSED_KEPT);
	int failed = -1;
	struct evk_nat_pair *known =
		draft->is_single ? 0 : bpf_map_lookup_elem(&evk_udp_clients, &draft->who);
	if (known)
		draft->pair = *known;
	struct evk_udp_session *session = known ? bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair) : 0;
	if (session) {
		/* The last datagram that a copy knows of may be old. */
		int end = session->flags & COPIED ? -1 : find_end(session, listener, now);
		int is_over = end >= 0 || session->flags & CLOSED;
		if (!is_over && session->flags & COPIED)
			adopt_session(&draft->pair.member, session, now);
		if (!is_over && !must_leave(session->seat) &&
		    !(listener->is_quic && is_foreign(skb, head, session, draft, listener)))
			return continue_session(skb, head, draft, session, now);
		if (is_over) {
			if (session->flags & FAILED && listener->retries)
				failed = session->seat;
			end_session(&draft->pair, end, now);
			bpf_map_delete_elem(&evk_udp_sessions, &draft->pair);
		} else {
			/* Answers under way still come. */
			session->seen = coarse(now);
			__sync_fetch_and_or(&session->flags, LEAVES);
		}
	}
	return begin_session(skb, head, draft, listener, failed, now);
}

/* Forwards a datagram of the draft's member. */
static __always_inline int serve_member(struct __sk_buff *skb, const struct headers *head,
					struct evk_udp_draft *draft, struct evk_udp_session *session, __u64 now)
{
	if (session->flags & QUIC)
		evk_quic_learn(skb, find_payload(head, draft), head->payload, 0);
	if (session->flags & SINGLE && is_late(draft, session, now))
		return drop_late(draft);
	struct bpf_fib_lookup fib;
	draft->from = session->of.listener;
	draft->to = session->of.client;
	draft->hop = draft->to.ip;
	enum way way = find_way_for(skb, &fib, IPPROTO_UDP, &draft->from.ip, &draft->to.ip, head->tos);
	/* The system tells the member, and does not send the packet on. */
	if (way == TOO_LARGE && head->keeps_whole)
		return pass(PASSED_TOO_LARGE);
	if (way != FOUND)
		return drop();
	if ((session->flags & (COPIED | CLOSED)) == COPIED)
		adopt_session(&draft->pair.member, session, now);
	if (!(session->flags & LEAVES))
		session->seen = coarse(now);
	__sync_fetch_and_add(&session->bytes_out, head->payload);
	__sync_fetch_and_add(&session->datagrams_out, count_datagrams(skb));
	if (!(session->flags & (ANSWERED | CLOSED)) &&
	    !(__sync_fetch_and_or(&session->flags, ANSWERED) & ANSWERED)) {
		__u32 seat = session->seat;
		struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
		if (counts) {
			__sync_fetch_and_add(&counts->answers, 1);
			__sync_fetch_and_add(&counts->answer_ns, now - session->began_ns);
		}
		tell_udp(EVENT_ANSWER, 0, &draft->pair.member, session, now);
		if (session->flags & SINGLE)
			end_session(&draft->pair, END_CLOSED, now);
	} else if (session->flags & SINGLE) {
		/* Another CPU has the first answer. */
		return drop_late(draft);
	}
	return send_datagram(skb, &fib, FORWARDED_TO_CLIENT);
}

/* Length of the headers of a datagram's first fragment of IPv6, up to the ports. */
#define FRAGMENT6 (IP_AT + 40 + 8 + 4)

/* Reads the addresses of a datagram's first fragment. Returns -1 if the packet is another one. */
static __always_inline int read_first_fragment(struct __sk_buff *skb, int is6, struct evk_udp_client *who)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__be16 *ports;
	if (is6) {
		struct ipv6hdr *ip = data + IP_AT;
		__u8 *fragment = (void *)(ip + 1);
		ports = (void *)(fragment + 8);
		if ((void *)(ports + 2) > end || ip->nexthdr != IPPROTO_FRAGMENT || fragment[0] != IPPROTO_UDP)
			return -1;
		/* Offset 0, and more to come. */
		if ((*(__be16 *)(fragment + 2) & bpf_htons(0xfff9)) != bpf_htons(1))
			return -1;
		copy_ipv6(&who->client.ip, &ip->saddr);
		copy_ipv6(&who->listener.ip, &ip->daddr);
	} else {
		struct iphdr *ip = data + IP_AT;
		ports = (void *)(ip + 1);
		if ((void *)(ports + 2) > end || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return -1;
		if ((ip->frag_off & bpf_htons(0x3fff)) != bpf_htons(0x2000))
			return -1;
		map_ipv4(&who->client.ip, ip->saddr);
		map_ipv4(&who->listener.ip, ip->daddr);
	}
	who->client.port = ports[0];
	who->listener.port = ports[1];
	return 0;
}

/* Leaves a packet to the stack. If the packet is the first fragment of a client's datagram, the client's next datagrams
 * go to the same place as this one. */
static __always_inline int pass_odd(struct __sk_buff *skb, int is6, struct evk_udp_draft *draft)
{
	if (read_first_fragment(skb, is6, &draft->who))
		return pass(PASSED_ODD);
	struct evk_udp_listener *listener = bpf_map_lookup_elem(&evk_udp_listeners, &draft->who.listener);
	if (!listener)
		return pass(PASSED_ODD);
	draft->is_single = listener->is_single;
	return keep(draft, PASSED_ODD, bpf_ktime_get_ns());
}

#include "fragments.bpf.h"

/* Forwards a datagram, or its first fragment. */
static __always_inline int forward_datagram(struct __sk_buff *skb, const struct headers *head,
					    struct evk_udp_draft *draft, const struct evk_udp_listener *listener,
					    __u64 now)
{
	if (listener)
		return serve_client(skb, head, draft, listener, now);
	draft->pair.member = head->from;
	draft->pair.source = head->to;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
	/* With direct answers, what comes from the member's own address is no answer. */
	if (session && !(session->flags & UDP_DIRECT))
		return serve_member(skb, head, draft, session, now);
	return relay_answer(skb, head, draft);
}

/* Forwards a packet of UDP. */
__attribute__((noinline)) int evk_forward_udp(struct __sk_buff *skb)
{
	int is6 = has_ipv6(skb);
	struct headers head = {};
	__u32 length = 0;
	enum content content = is6 ? read_ipv6(skb, &head, &length) : read_ipv4(skb, &head, &length);
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft || (content != UDP && content != ODD))
		return TC_ACT_UNSPEC;
	struct evk_fragments_draft *fragments = find_fragments_draft();
	if (!fragments)
		return TC_ACT_UNSPEC;
	__u64 now = bpf_ktime_get_ns();
	draft->part = content == ODD ? read_fragment(skb, is6, &head, &fragments->key) : WHOLE;
	if (draft->part == LATER_PART)
		return follow_first_fragment(skb, &head, fragments, draft, now);
	if (draft->part == NO_PART || (draft->part == FIRST_PART && has_passed(&fragments->key, now)))
		return pass_odd(skb, is6, draft);
	if (draft->part == WHOLE && read_udp(skb, &head, length))
		return pass(PASSED_ODD);
	struct evk_udp_listener *listener = bpf_map_lookup_elem(&evk_udp_listeners, &head.to);
	int answer = forward_datagram(skb, &head, draft, listener, now);
	if (draft->part == FIRST_PART || draft->part == LATE_PART)
		note_first_fragment(skb, is6, fragments, draft, answer, !!listener, now);
	return answer;
}

/* True if an error of ICMP says that nobody takes datagrams there: not that a way is missing for now, or too narrow.
 * These are the errors of which the system tells a socket. */
static __always_inline int is_refusal(struct __sk_buff *skb, int is6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 icmp_at = is6 ? ETH_HLEN + 40 : ETH_HLEN + 20;
	if (data + icmp_at + 2 > end)
		return 0;
	__u8 type = *(__u8 *)(data + icmp_at), code = *(__u8 *)(data + icmp_at + 1);
	/* Codes as bits: port, protocol, unknown, forbidden. */
	__u32 refusals = is6 ? 0x72 : 0xe7cc;
	return type == (is6 ? 1 : 3) && code < 16 && refusals >> code & 1;
}

/* Forwards an error of ICMP about a datagram of a session, with the addresses that its sender knows. */
__attribute__((noinline)) int evk_forward_udp_error(struct __sk_buff *skb)
{
	int is6 = has_ipv6(skb);
	struct headers head = {};
	__u32 length = 0;
	enum content content = is6 ? read_ipv6(skb, &head, &length) : read_ipv4(skb, &head, &length);
	struct evk_address from = {}, to = {}, next = {}, receiver = {};
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft || content != ERROR || read_error(skb, is6, length, IPPROTO_UDP, &from, &to) ||
	    !is_equal(&from.ip, &head.to.ip))
		return TC_ACT_UNSPEC;
	draft->pair.member = to;
	draft->pair.source = from;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
	int of_client = !!session;
	if (session) {
		/* A datagram of the client to the member: the client knows the listener. */
		next = session->of.listener;
		receiver = session->of.client;
		if (is_refusal(skb, is6)) {
			/* Nothing ends a copy but its balancer. */
			if (!(session->flags & COPIED))
				__sync_fetch_and_or(&session->flags, FAILED);
			end_session(&draft->pair, END_UNREACHABLE, bpf_ktime_get_ns());
		}
	} else {
		draft->who.client = to;
		draft->who.listener = from;
		struct evk_nat_pair *known = bpf_map_lookup_elem(&evk_udp_clients, &draft->who);
		if (!known)
			return TC_ACT_UNSPEC;
		next = known->member;
		receiver = next;
		draft->pair = *known;
	}
	struct bpf_fib_lookup fib;
	if (find_way_for(skb, &fib, IPPROTO_UDP, &head.from.ip, &receiver.ip, head.tos) != FOUND)
		return TC_ACT_UNSPEC;
	/* With direct answers both sides have the addresses of the datagram. */
	if (!of_client && find_direct_session(draft)) {
		next = draft->who.listener;
		receiver = next;
	}
	/* Both addresses: with half NAT, the client's one stays as it is. */
	struct evk_address *other = of_client ? &receiver : &draft->pair.source;
	if (of_client ? change_quoted(skb, 0, &to, &next) || change_quoted(skb, 1, &from, other) :
			change_quoted(skb, 1, &from, &next) || change_quoted(skb, 0, &to, other))
		return TC_ACT_SHOT;
	if (is6 ? change_ipv6(skb, 0, &receiver.ip, ETH_HLEN + 40 + 2) :
		  change_ipv4(skb, 0, receiver.ip.word[3], 0))
		return TC_ACT_SHOT;
	count(ERRORS);
	return redirect(&fib);
}

/* Removes a session, and the client's way to the session. */
static __attribute__((noinline)) void forget_session(const struct evk_nat_pair *which)
{
	struct evk_nat_pair pair = *which;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &pair);
	if (!session)
		return;
	struct evk_udp_client who = session->of;
	/* The client may have another session. */
	struct evk_nat_pair *known = bpf_map_lookup_elem(&evk_udp_clients, &who);
	if (known && is_same_address(&known->member, &pair.member) && is_same_address(&known->source, &pair.source))
		bpf_map_delete_elem(&evk_udp_clients, &who);
	bpf_map_delete_elem(&evk_udp_sessions, &pair);
}

/* Removes a session that is over, or that was silent for too long. A session of a single datagram that is open ends, and
 * stays while its port rests. */
struct evk_udp_removal {
	struct evk_nat_pair pair;
	__u32 seen; /* not if a datagram has come since */
	__u32 end;  /* reason, if the session has not ended before */
};

SEC("syscall")
int evk_udp_remove(struct evk_udp_removal *removal)
{
	struct evk_nat_pair pair = removal->pair;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &pair);
	if (!session || session->seen != removal->seen)
		return 0;
	if (session->flags & SINGLE)
		return end_or_remove(&pair, session, removal->end, bpf_ktime_get_ns());
	end_session(&pair, removal->end, bpf_ktime_get_ns());
	forget_session(&pair);
	return 1;
}

/* Copy of a session as another balancer has sent it. */
struct evk_udp_order {
	struct evk_nat_pair pair;
	struct evk_udp_session session;
};

/* True if packets of a session have passed the other balancer since packets came here, as `has_moved`. */
static __always_inline int has_session_moved(const struct evk_udp_session *here, const struct evk_udp_session *there,
					     __u64 now)
{
	__s32 newer = there->seen - here->seen, silence = coarse(now) - here->seen;
	return newer >= (__s32)YIELD || (newer >= (__s32)LATER && silence >= (__s32)YIELD);
}

/* Makes room for a copy where the client has another session. Returns an error if this balancer has the session. */
static __attribute__((noinline)) int leave_other(const struct evk_nat_pair *pair, const struct evk_udp_session *next,
						 __u64 now)
{
	struct evk_udp_client who = next->of;
	struct evk_nat_pair *known = bpf_map_lookup_elem(&evk_udp_clients, &who);
	if (!known || (is_same_address(&known->member, &pair->member) && is_same_address(&known->source, &pair->source)))
		return 0;
	struct evk_nat_pair other = *known;
	struct evk_udp_session *old = bpf_map_lookup_elem(&evk_udp_sessions, &other);
	if (old && !(old->flags & (COPIED | CLOSED)) && !has_session_moved(old, next, now))
		return -1;
	end_session(&other, END_CLOSED, now);
	bpf_map_delete_elem(&evk_udp_sessions, &other);
	return 0;
}

/* Enters a copy of a session, or what is new of a copy. */
SEC("syscall")
int evk_udp_copy(struct evk_udp_order *order)
{
	struct evk_nat_pair pair = order->pair;
	struct evk_udp_session next = order->session;
	__u64 now = bpf_ktime_get_ns();
	int result = COPY_UPDATED;
	/* The process has the client's session. */
	if (bpf_map_lookup_elem(&evk_udp_kept, &next.of))
		return COPY_OWN;
	struct evk_udp_session *old = bpf_map_lookup_elem(&evk_udp_sessions, &pair);
	if (old && (!is_same_address(&old->of.client, &next.of.client) || (old->flags ^ next.flags) & UDP_DIRECT ||
		    !is_same_address(&old->of.listener, &next.of.listener))) {
		/* The port towards the member, or with half NAT another address of this balancer, or another return path. */
		if (!(old->flags & COPIED))
			return COPY_PORT;
		forget_session(&pair);
		old = 0;
	}
	struct evk_udp_listener *listener = bpf_map_lookup_elem(&evk_udp_listeners, &next.of.listener);
	if (listener && listener->is_quic)
		next.flags |= QUIC;
	int yields = old && !(old->flags & COPIED);
	if ((yields && !has_session_moved(old, &next, now)) || leave_other(&pair, &next, now))
		return COPY_OWN;
	if (yields) {
		end_session(&pair, END_CLOSED, now);
		/* No longer counted: a copy from now on. */
		old->bytes_in = 0;
		old->bytes_out = 0;
		old->datagrams_in = 0;
		old->datagrams_out = 0;
		/* Ids that the session has entered stay the session's. */
		old->flags = next.flags | (old->flags & ~((1U << QUIC_IDS_AT) - 1));
		result = COPY_YIELDED;
	}
	if (old) {
		__sync_fetch_and_or(&old->flags, next.flags & ANSWERED);
		old->seat = next.seat;
		old->seen = next.seen;
	} else {
		long failed = bpf_map_update_elem(&evk_udp_sessions, &pair, &next, BPF_NOEXIST);
		if (failed)
			return failed == -EEXIST ? COPY_OWN : COPY_FULL;
		result = COPY_WRITTEN;
	}
	if (bpf_map_update_elem(&evk_udp_clients, &next.of, &pair, BPF_ANY)) {
		bpf_map_delete_elem(&evk_udp_sessions, &pair);
		return COPY_FULL;
	}
	return result;
}
