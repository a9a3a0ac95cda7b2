/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Sessions of UDP whose members answer clients themselves: a part of udp.bpf.h.
 *
 * Members have the listener's address, too, and get the datagrams of clients unchanged. Nothing is known of answers: the
 * session of a client stays until no datagram of the client comes, and single datagrams are in no table
 * (`has_messages`). */

/* Flags of such a session from the beginning on. No answer is waited for, and the client's source gets nothing back for
 * another datagram: the address may be forged. */
#define WITHOUT_ANSWERS (UDP_DIRECT | ANSWERED | CONFIRMED)

/* Sets the addresses of a client's datagram to the draft's member, in a session with these flags. */
static __always_inline void aim_at_pair(struct evk_udp_draft *draft, __u32 flags)
{
	draft->from = draft->pair.source;
	draft->to = flags & UDP_DIRECT ? draft->who.listener : draft->pair.member;
	draft->hop = draft->pair.member.ip;
}

/* Finds the session of the draft's client, and sets the draft's pair. Returns 0 if the session has answers that pass
 * here, or if there is none. */
static __always_inline struct evk_udp_session *find_direct_session(struct evk_udp_draft *draft)
{
	struct evk_nat_pair *known = bpf_map_lookup_elem(&evk_udp_clients, &draft->who);
	if (!known)
		return 0;
	draft->pair = *known;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
	return session && session->flags & UDP_DIRECT ? session : 0;
}

/* Sends an answer of a member to the client, as the balancer is on the member's route to clients: the system would drop what
 * others send from an address of this machine. Nothing is counted, as of members with another route. */
static __always_inline int relay_answer(struct __sk_buff *skb, const struct headers *head, struct evk_udp_draft *draft)
{
	draft->who.client = head->to;
	draft->who.listener = head->from;
	if (!find_direct_session(draft))
		return TC_ACT_UNSPEC;
	struct bpf_fib_lookup fib;
	draft->from = head->from;
	draft->to = head->to;
	draft->hop = head->to.ip;
	enum way way = find_way_for(skb, &fib, IPPROTO_UDP, &draft->from.ip, &draft->to.ip, head->tos);
	if (way == TOO_LARGE && head->keeps_whole)
		return pass(PASSED_TOO_LARGE);
	if (way != FOUND)
		return drop();
	return send_datagram(skb, &fib, FORWARDED_TO_CLIENT);
}
