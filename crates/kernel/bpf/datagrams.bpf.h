/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Sessions of a single datagram: a part of udp.bpf.h.
 *
 * Each datagram of a client gets a member by itself. With full NAT a datagram has a port of its own towards the member: the
 * answer finds its session by the ports, so evk_udp_clients has no entry. The first answer ends the session. A session that
 * has ended stays in evk_udp_sessions, and its port rests: a late answer finds an ended session, and not another client's.
 * After its rest, the port is taken by the next session that comes to it (`evk_udp_take_port`), or the balancer removes the
 * entry.
 * A datagram for which no answer is awaited is a message: with half NAT it needs no port, and is in no table. */

/* Time for which a port rests after an answer, as `coarse` has it: a second. Copies of the answer are under way no longer. */
#define REST 954U

/* The same without an answer, which may be late: 30 seconds, as `LONG_REST` in src/forward/udp.rs. */
#define LONG_REST 28611U

/* True if no answer is awaited to the datagrams of a listener. */
static __always_inline int has_messages(const struct evk_udp_listener *listener)
{
	return listener->is_single && !listener->answer;
}

/* Claims an ended session, which is removed or replaced then. Returns 0 if somebody else has. */
static __always_inline int claim_session(struct evk_udp_session *session)
{
	return !(__sync_fetch_and_or(&session->flags, TAKEN) & TAKEN);
}

/* Ends the session of a datagram without an answer at which the balancer has not looked for long: no process runs. The port
 * has rested meanwhile. */
static __always_inline void end_forgotten(const struct evk_nat_pair *pair, struct evk_udp_session *session, __u64 now)
{
	if ((session->flags & (SINGLE | CLOSED)) == SINGLE &&
	    is_longer(now, session->seen, session->checked + LONG_REST))
		end_session(pair, END_SILENT, now);
}

/* Claims an ended session whose port has rested. Returns 0 if there is none. */
static __always_inline int claim_rested(struct evk_udp_session *session, __u64 now)
{
	__u32 flags = session->flags;
	if ((flags & (SINGLE | CLOSED)) != (SINGLE | CLOSED))
		return 0;
	return is_longer(now, session->seen, flags & ANSWERED ? REST : LONG_REST) && claim_session(session);
}

/* True if a datagram of the draft's member is no answer any more: the session of a datagram has one, in time. */
static __always_inline int is_late(const struct evk_udp_draft *draft, struct evk_udp_session *session, __u64 now)
{
	if (session->flags & (ANSWERED | CLOSED))
		return 1;
	if (!is_longer(now, coarse(session->began_ns), session->checked))
		return 0;
	/* The port rests from now on. */
	session->seen = coarse(now);
	end_session(&draft->pair, END_SILENT, now);
	return 1;
}

/* Drops a datagram of a member that is no answer any more, or a fragment of one. */
static __always_inline int drop_late(struct evk_udp_draft *draft)
{
	if (draft->part == FIRST_PART)
		draft->part = LATE_PART;
	count(LATE_ANSWERS);
	return TC_ACT_SHOT;
}

/* Tells the message in the draft with one event, which ends when it has begun. Senders may forge their addresses, and send as
 * fast as they can: half of the buffer is for the events of others. */
static __always_inline void tell_message(const struct evk_udp_draft *draft, __u64 now)
{
	if (bpf_ringbuf_query(&evk_events, BPF_RB_AVAIL_DATA) > EVENTS_SIZE / 2)
		count(LOST_EVENTS);
	else
		tell_udp(EVENT_END, END_CLOSED, &draft->pair.member, &draft->session, now);
}

/* Counts the message in the draft, whose session is over at once. A function of its own, which the verifier checks once.
 * Returns 0 without a draft. */
__attribute__((noinline)) int evk_udp_count_message(__u64 now)
{
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft)
		return 0;
	const struct evk_udp_session *session = &draft->session;
	__u32 seat = session->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts) {
		__sync_fetch_and_add(&counts->picks, 1);
		__sync_fetch_and_add(&counts->closed, 1);
		__sync_fetch_and_add(&counts->bytes_in, session->bytes_in);
	}
	struct evk_udp_counts *all = bpf_map_lookup_elem(&evk_udp_counts, &draft->who.listener);
	if (all) {
		__sync_fetch_and_add(&all->begun, 1);
		__sync_fetch_and_add(&all->bytes_in, session->bytes_in);
		__sync_fetch_and_add(&all->datagrams_in, session->datagrams_in);
	}
	tell_message(draft, now);
	return 1;
}

/* Ends the session of a datagram, whose port rests from then on, or removes a session that has ended. Returns 0 if there is
 * nothing to do. */
static __always_inline int end_or_remove(const struct evk_nat_pair *pair, struct evk_udp_session *session, __u32 end,
					 __u64 now)
{
	if (session->flags & CLOSED) {
		if (!claim_session(session))
			return 0;
		if (!bpf_map_delete_elem(&evk_udp_sessions, pair))
			return 1;
		/* The next look tries again, or the next session takes the port. */
		__sync_fetch_and_and(&session->flags, ~TAKEN);
		return 0;
	}
	session->seen = coarse(now);
	return end_session(pair, end, now);
}
