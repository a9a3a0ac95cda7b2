/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Connection ids of QUIC (RFC 8999): a part of udp.bpf.h.
 *
 * A member chooses ids, and tells them in the long headers of its datagrams: the program enters the ids with the session.
 * Of members that answer clients themselves, the program sees the ids in the long headers of clients.
 * A datagram of a client with an unknown address begins a session at the member of its id. An id belongs to a session,
 * and to nobody after the session's end. Other sessions of the same member that have used the id get it then
 * (`evk_quic_sweep`): those of a client whose address has changed. Nobody takes the id of a session that is open.
 *
 * Sessions of the process have ids, too, which the process tells the program (`evk_quic_share`). They have a table of their own:
 * the kernel's ids have room whatever the process has. The table is gone with the process and its sessions, and so it is not
 * pinned. */

/* Ids that a session may enter. */
#define QUIC_IDS 8

/* Ids that a session may enter which only its client has told: one of a Retry packet, and one of the handshake. Clients may
 * forge more. */
#define QUIC_TOLD_IDS 2

/* Length of an id that a client has told, at least: nobody guesses the ids of others. */
#define QUIC_MIN_TOLD_ID 8

/* Lowest bit of the number of ids that a session has entered, in its flags. */
#define QUIC_IDS_AT 24

/* First bytes of a datagram: with a long header up to four bytes of the receiver's id. Packets of QUIC are longer. */
#define QUIC_HEAD 10

/* Bit of a long header in the first byte. */
#define QUIC_LONG 0x80

/* No LRU, as for sessions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_quic_id);
	__type(value, struct evk_quic_owner);
} evk_quic_ids SEC(".maps");

/* Number of ids in the table by length: a short header does not say the length of its id. */
struct evk_quic_lengths {
	__u32 count[QUIC_MAX_ID + 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_quic_lengths);
} evk_quic_lengths SEC(".maps");

/* Members of ids that sessions of the process have. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_quic_place);
	__type(value, struct evk_address);
} evk_quic_shared SEC(".maps");

/* Number of these ids by length. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_quic_lengths);
} evk_quic_shared_lengths SEC(".maps");

static __always_inline void count_length(struct evk_quic_lengths *lengths, __u32 length, __s32 by)
{
	if (lengths && length <= QUIC_MAX_ID)
		__sync_fetch_and_add(&lengths->count[length], by);
}

static __always_inline void count_quic_id(__u32 length, __s32 by)
{
	__u32 zero = 0;
	count_length(bpf_map_lookup_elem(&evk_quic_lengths, &zero), length, by);
}

/* Finds the session that an id belongs to, or 0 if the session is over. */
static __always_inline struct evk_udp_session *find_quic_owner(const struct evk_quic_owner *owner)
{
	struct evk_nat_pair pair = owner->session;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &pair);
	if (!session || session->began_ns != owner->began_ns || session->flags & CLOSED)
		return 0;
	return session;
}

/* Enters an id for a session, unless the id belongs to an open session. Returns 1 if the id is this session's now. */
static __always_inline int enter_quic_id(const struct evk_quic_id *id, const struct evk_quic_owner *session)
{
	struct evk_quic_owner *owner = bpf_map_lookup_elem(&evk_quic_ids, id);
	if (owner)
		return !find_quic_owner(owner) && !bpf_map_update_elem(&evk_quic_ids, id, session, BPF_EXIST);
	long failed = bpf_map_update_elem(&evk_quic_ids, id, session, BPF_NOEXIST);
	if (failed) {
		if (failed != -EEXIST)
			count(LOST_IDS);
		return 0;
	}
	count_quic_id(id->length, 1);
	return 1;
}

/* Notes the id that a session's client uses. The other CPU that notes one at the same time wins. */
static __always_inline void note_quic_id(struct evk_udp_session *session, const struct evk_quic_id *id)
{
	if (__sync_fetch_and_or(&session->flags, NOTES_ID) & NOTES_ID)
		return;
	session->id = *id;
	__sync_fetch_and_and(&session->flags, ~NOTES_ID);
}

/* Reads an id of this length at a place of the packet into the draft. Returns -1 if ids do not have this length, or the
 * packet is shorter. */
static __always_inline int read_quic_id(struct __sk_buff *skb, struct evk_udp_draft *draft, __u32 at, __u32 length,
					__u32 group)
{
	__builtin_memset(&draft->id, 0, sizeof(draft->id));
	if (!is_within(&length, QUIC_MIN_ID, QUIC_MAX_ID) || bpf_skb_load_bytes(skb, at, draft->id.bytes, length))
		return -1;
	draft->id.length = length;
	draft->id.group = group;
	return 0;
}

/* Place of the first byte behind the header of UDP. */
static __always_inline __u32 find_payload(const struct headers *head, const struct evk_udp_draft *draft)
{
	return ETH_HLEN + (!head->is_ipv6 ? 20 : draft->part == FIRST_PART ? 48 : 40) + 8;
}

/* Reads the first bytes of a datagram. Returns -1 if it is no packet of QUIC. */
static __always_inline int read_quic_head(struct __sk_buff *skb, __u32 at, __u32 payload, __u8 *head)
{
	return payload < QUIC_HEAD || bpf_skb_load_bytes(skb, at, head, QUIC_HEAD) ? -1 : 0;
}

/* Reads the first bytes of the id in a client's datagram; 0 if there is none. */
static __always_inline __u32 read_quic_prefix(struct __sk_buff *skb, const struct headers *head,
					       const struct evk_udp_draft *draft)
{
	__u8 first[QUIC_HEAD];
	if (read_quic_head(skb, find_payload(head, draft), head->payload, first))
		return 0;
	int is_long = first[0] & QUIC_LONG;
	if (is_long && first[5] < QUIC_MIN_ID)
		return 0;
	__u32 prefix;
	if (is_long)
		__builtin_memcpy(&prefix, first + 6, sizeof(prefix));
	else
		__builtin_memcpy(&prefix, first + 1, sizeof(prefix));
	return prefix;
}

/* Returns the seat of the draft's id among the ids of the process at the draft's listener; -1 if the process has no such id. A
 * function of its own, which the verifier checks once. */
__attribute__((noinline)) int evk_quic_shared_seat(void)
{
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft)
		return -1;
	draft->place.listener = draft->who.listener;
	draft->place.id = draft->id;
	draft->place.id.group = 0;
	struct evk_address *member = bpf_map_lookup_elem(&evk_quic_shared, &draft->place);
	__u32 number = draft->id.group;
	struct evk_group *group = member ? bpf_map_lookup_elem(&evk_groups, &number) : 0;
	if (!group)
		return -1;
	__u32 total = group->count;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		if (i >= total)
			break;
		__u32 seat = group->seats[i];
		struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
		if (terms && is_same_address(&terms->address, member))
			return seat;
	}
	return -1;
}

/* Returns the seat of the draft's id for the draft's client; -1 if nobody has the id, or clients go to other members. A
 * function of its own, likewise. */
__attribute__((noinline)) int evk_quic_seat(void)
{
	struct evk_udp_draft *draft = find_udp_draft();
	if (!draft)
		return -1;
	struct evk_quic_owner *owner = bpf_map_lookup_elem(&evk_quic_ids, &draft->id);
	struct evk_udp_session *session = owner ? find_quic_owner(owner) : 0;
	int is_here = session && is_same_address(&session->of.listener, &draft->who.listener);
	int seat = is_here ? (int)session->seat : evk_quic_shared_seat();
	return seat < 0 || must_leave(seat) ? -1 : seat;
}

/* Finds the member that has chosen the id in the datagram of the draft's client. Returns the seat, and the draft has the
 * id; -1 if there is none. */
__attribute__((noinline)) int evk_quic_find(struct __sk_buff *skb, __u32 at, __u32 payload, __u32 group)
{
	__u32 zero = 0;
	struct evk_udp_draft *draft = find_udp_draft();
	struct evk_quic_lengths *lengths = bpf_map_lookup_elem(&evk_quic_lengths, &zero);
	struct evk_quic_lengths *shared = bpf_map_lookup_elem(&evk_quic_shared_lengths, &zero);
	__u8 head[QUIC_HEAD];
	if (!draft || !lengths || !shared || read_quic_head(skb, at, payload, head))
		return -1;
	if (head[0] & QUIC_LONG) {
		__u32 length = head[5];
		if (payload < 6 + length || read_quic_id(skb, draft, at + 6, length, group))
			return -1;
		return evk_quic_seat();
	}
	__u32 length = payload - 1;
	if (length > QUIC_MAX_ID)
		length = QUIC_MAX_ID;
	if (read_quic_id(skb, draft, at + 1, length, group))
		return -1;
	/* The longest id that matches. */
	for (__u32 tried = QUIC_MAX_ID; tried >= QUIC_MIN_ID; tried--) {
		if (tried < QUIC_MAX_ID)
			draft->id.bytes[tried] = 0;
		if (tried > length || !(lengths->count[tried] | shared->count[tried]))
			continue;
		draft->id.length = tried;
		int seat = evk_quic_seat();
		if (seat >= 0)
			return seat;
	}
	return -1;
}

/* Seat of the id in a client's datagram, or -1, as `evk_quic_find`. */
static __always_inline int find_by_id(struct __sk_buff *skb, const struct headers *head,
				      const struct evk_udp_draft *draft, const struct evk_udp_listener *listener)
{
	if (!listener->is_quic)
		return -1;
	return evk_quic_find(skb, find_payload(head, draft), head->payload, listener->group);
}

/* Enters the id that the draft's member has chosen for the draft's session, if the datagram says one. A datagram of the
 * member has the id as the sender's, and one of the client as the receiver's. Of several datagrams that the system has put
 * together only the first one is read. Returns 1 if the id is in the table. */
__attribute__((noinline)) int evk_quic_learn(struct __sk_buff *skb, __u32 at, __u32 payload, __u32 is_of_client)
{
	struct evk_udp_draft *draft = find_udp_draft();
	__u8 head[QUIC_HEAD];
	if (!draft || read_quic_head(skb, at, payload, head) || !(head[0] & QUIC_LONG))
		return 0;
	/* A packet of Version Negotiation repeats an id of the client. */
	if (!(head[1] | head[2] | head[3] | head[4]))
		return 0;
	/* A length, the receiver's id, a length, the sender's id. */
	__u32 length_at = is_of_client ? 5 : 6 + head[5];
	__u8 length;
	if (payload <= length_at || bpf_skb_load_bytes(skb, at + length_at, &length, sizeof(length)) ||
	    payload - length_at <= length || (is_of_client && length < QUIC_MIN_TOLD_ID))
		return 0;
	struct evk_udp_session *session = bpf_map_lookup_elem(&evk_udp_sessions, &draft->pair);
	if (!session || session->flags & (CLOSED | LEAVES))
		return 0;
	struct evk_udp_listener *listener = bpf_map_lookup_elem(&evk_udp_listeners, &session->of.listener);
	if (!listener || !listener->is_quic ||
	    read_quic_id(skb, draft, at + length_at + 1, length, listener->group))
		return 0;
	struct evk_quic_owner *owner = bpf_map_lookup_elem(&evk_quic_ids, &draft->id);
	struct evk_udp_session *holder = owner ? find_quic_owner(owner) : 0;
	if (holder) {
		/* A client of the same member whose address has changed. */
		if (holder->seat == session->seat)
			note_quic_id(session, &draft->id);
		return 0;
	}
	if (session->flags >> QUIC_IDS_AT >= (is_of_client ? QUIC_TOLD_IDS : QUIC_IDS))
		return 0;
	draft->who = session->of;
	int shared = evk_quic_shared_seat();
	if (shared >= 0 && shared != session->seat)
		return 0;
	draft->owner.session = draft->pair;
	draft->owner.began_ns = session->began_ns;
	if (!enter_quic_id(&draft->id, &draft->owner))
		return 0;
	__sync_fetch_and_add(&session->flags, 1 << QUIC_IDS_AT);
	note_quic_id(session, &draft->id);
	return 1;
}

/* True if the connection of a client's datagram is at another member: the client has an address that another one had. */
static __always_inline int is_foreign(struct __sk_buff *skb, const struct headers *head, struct evk_udp_session *session,
				      struct evk_udp_draft *draft, const struct evk_udp_listener *listener)
{
	__u32 prefix = read_quic_prefix(skb, head, draft);
	if (!prefix || prefix == session->checked)
		return 0;
	session->checked = prefix;
	int seat = find_by_id(skb, head, draft, listener);
	/* The member's answer has told the client an id. The first datagram has an id that the client has chosen. */
	if (seat < 0 && session->flags & UDP_DIRECT)
		evk_quic_learn(skb, find_payload(head, draft), head->payload, 1);
	if (seat < 0 || seat != session->seat)
		return seat >= 0;
	note_quic_id(session, &draft->id);
	return 0;
}

/* Gives the id of a session to the session, if the id belongs to nobody. */
static long keep_quic_id(void *map, struct evk_nat_pair *pair, struct evk_udp_session *session, void *context)
{
	if (!session->id.length || session->flags & (CLOSED | LEAVES) ||
	    __sync_fetch_and_or(&session->flags, NOTES_ID) & NOTES_ID)
		return 0;
	struct evk_quic_id id = session->id;
	__sync_fetch_and_and(&session->flags, ~NOTES_ID);
	struct evk_quic_owner owner = { .session = *pair, .began_ns = session->began_ns };
	enter_quic_id(&id, &owner);
	return 0;
}

struct evk_quic_ids_left {
	__u32 count;
	__u32 zero;
};

/* Removes an id that belongs to nobody. */
static long remove_quic_id(void *map, struct evk_quic_id *id, struct evk_quic_owner *owner,
			   struct evk_quic_ids_left *left)
{
	struct evk_quic_id key = *id;
	if (find_quic_owner(owner))
		left->count += 1;
	else if (!bpf_map_delete_elem(&evk_quic_ids, &key))
		count_quic_id(key.length, -1);
	return 0;
}

/* Removes the ids of sessions that are over, unless other sessions use them. Returns the number of the other ids. */
SEC("syscall")
int evk_quic_sweep(struct evk_quic_ids_left *ids)
{
	struct evk_quic_ids_left left = {};
	bpf_for_each_map_elem(&evk_udp_sessions, keep_quic_id, &left, 0);
	bpf_for_each_map_elem(&evk_quic_ids, remove_quic_id, &left, 0);
	ids->count = left.count;
	return 0;
}

/* Id of a session of the process. */
struct evk_quic_share_order {
	struct evk_quic_place place;
	struct evk_address member; /* without a port: no session of the process has the id any more */
};

/* Tells the program an id of the process. Returns 0 if there is no room for the id. */
SEC("syscall")
int evk_quic_share(struct evk_quic_share_order *order)
{
	struct evk_quic_place place = order->place;
	struct evk_address member = order->member;
	__u32 zero = 0;
	struct evk_quic_lengths *lengths = bpf_map_lookup_elem(&evk_quic_shared_lengths, &zero);
	if (!member.port) {
		if (!bpf_map_delete_elem(&evk_quic_shared, &place))
			count_length(lengths, place.id.length, -1);
		return 1;
	}
	long failed = bpf_map_update_elem(&evk_quic_shared, &place, &member, BPF_NOEXIST);
	if (!failed)
		count_length(lengths, place.id.length, 1);
	else if (failed == -EEXIST)
		failed = bpf_map_update_elem(&evk_quic_shared, &place, &member, BPF_EXIST);
	if (failed)
		count(LOST_IDS);
	return !failed;
}
