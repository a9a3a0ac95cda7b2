/* Copies of connections that another balancer forwards (src/forward/copies.rs). A copy counts nowhere, until packets of
 * the connection come here: the address has moved, and the connection is this balancer's from then on. */

/* Counts a copy as a connection of this balancer, once. */
static __attribute__((noinline)) void adopt(const struct evk_address *client, struct evk_connection *connection,
					    __u64 now)
{
	__u32 before = __sync_fetch_and_and(&connection->flags, ~COPIED);
	if (!(before & COPIED))
		return;
	__u32 seat = connection->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (counts)
		__sync_fetch_and_add(&counts->in_flight, 1);
	struct evk_listener_counts *all = find_listener_counts(connection);
	if (all)
		__sync_fetch_and_add(&all->open, 1);
	if (evk_limit_connection(client, connection, before & CONFIRMED ? LIMIT_ADD | LIMIT_CONFIRMED : LIMIT_ADD, now))
		__sync_fetch_and_or(&connection->flags, LIMITED);
	tell(EVENT_ADOPT, 0, client, connection, now);
}

/* Distance between the numbers of both sides that tell of each other: what may be under way. */
#define UNDER_WAY (1U << 26)
/* Distance from the numbers of a copy at which a packet alone shows that the connection has moved: a stranger must guess two
 * numbers of 32 bits to within it. */
#define FITTING (1U << 16)

static __always_inline int is_near(__u32 a, __u32 b, __u32 distance)
{
	return a - b + distance <= 2 * distance;
}

/* True if a packet has the numbers of the copy, which may be seconds old. */
static __always_inline int is_fitting(const struct headers *head, const struct evk_side *side,
				      const struct evk_side *other)
{
	if (!head->ack)
		return head->sequence == side->next;
	return is_near(head->sequence, side->next, FITTING) && is_near(head->answered, other->next, FITTING);
}

/* Takes the numbers of a side from a packet, as those of the copy may be seconds old. If the other side's packet before
 * contradicts, one of the two is a stranger's: the other side must say its numbers again. Ends must have the numbers
 * that are known: a stranger must not end a connection by the first packet. */
static __attribute__((noinline)) void learn(const struct headers *head, struct evk_connection *connection, __u32 loose)
{
	int is_client = loose == LOOSE_CLIENT;
	struct evk_side *side = is_client ? &connection->client_side : &connection->member_side;
	struct evk_side *other = is_client ? &connection->member_side : &connection->client_side;
	__u32 other_loose = is_client ? LOOSE_MEMBER : LOOSE_CLIENT;
	if (!head->ack || head->syn || head->fin || head->rst ||
	    !(__sync_fetch_and_and(&connection->flags, ~loose) & loose))
		return;
	int is_direct = connection->flags & DIRECT;
	int agrees = is_direct || (!(connection->flags & other_loose) &&
				   is_near(head->answered, other->next, UNDER_WAY) &&
				   is_near(head->sequence, other->acked, UNDER_WAY));
	side->next = head->sequence + head->payload;
	side->acked = head->answered;
	/* What the other side has sent itself is newer. */
	if (!agrees || head->answered - other->next < MAX_WINDOW)
		other->next = head->answered;
	if (agrees)
		return;
	other->acked = head->sequence;
	__sync_fetch_and_or(&connection->flags, other_loose);
}

/* Takes a connection over with a packet of the client or the member: `loose` is the flag of the side. A packet with the
 * copy's numbers is enough, else both sides must have spoken, and agree: a stranger who knows the addresses takes
 * nothing over. With direct answers the member is not seen. */
static __always_inline void take_over(const struct headers *head, const struct evk_address *client,
				      struct evk_connection *connection, __u32 loose, __u64 now)
{
	int is_client = loose == LOOSE_CLIENT;
	const struct evk_side *side = is_client ? &connection->client_side : &connection->member_side;
	const struct evk_side *other = is_client ? &connection->member_side : &connection->client_side;
	__u32 flags = connection->flags, all = flags & DIRECT ? LOOSE_CLIENT : LOOSE_CLIENT | LOOSE_MEMBER;
	int fits = (flags & all) == all && is_fitting(head, side, other);
	if (flags & loose)
		learn(head, connection, loose);
	if (connection->flags & COPIED && (fits || !(connection->flags & all)))
		adopt(client, connection, now);
}

/* Copy as another balancer has sent it. */
struct evk_copy_order {
	struct evk_address client;
	struct evk_connection connection;
};

enum evk_copy_result {
	COPY_FAILED,
	COPY_WRITTEN, /* a new entry */
	COPY_UPDATED, /* an entry that was a copy */
	COPY_YIELDED, /* an entry of this balancer, whose packets now pass the other one */
	COPY_OWN,     /* this balancer has the connection, or another one of the client */
	COPY_FULL,    /* no place */
	COPY_PORT,    /* full NAT: the port has a connection of this balancer */
};

/* Time for which a connection must have been silent here longer than at the other balancer to be the other's. */
#define YIELD 2000U
/* Distance between the last packets at two balancers that tells the later one: messages are under way for less. */
#define LATER 200U

/* True if the other balancer has had packets of a connection since packets came here: much later ones, or later ones, and
 * none here since. */
static __always_inline int has_moved(const struct evk_connection *here, const struct evk_connection *there, __u64 now)
{
	__s32 newer = there->seen - here->seen, silence = coarse(now) - here->seen;
	return newer >= (__s32)YIELD || (newer >= (__s32)LATER && silence >= (__s32)YIELD);
}

/* True if two entries are of one connection. */
static __always_inline int is_same(const struct evk_connection *a, const struct evk_connection *b)
{
	return is_equal(&a->listener, &b->listener) && is_equal(&a->member, &b->member) &&
	       is_equal(&a->source, &b->source) && a->listener_port == b->listener_port &&
	       a->member_port == b->member_port && a->source_port == b->source_port;
}

/* Enters a copy, or what is new of a copy. */
SEC("syscall")
int evk_copy(struct evk_copy_order *order)
{
	struct evk_address client = order->client;
	struct evk_connection next = order->connection;
	/* Entries with a time of 0 are claimed: this machine may be younger than the connection. */
	if (!next.began_ns)
		next.began_ns = 1;
	struct evk_address at = { .ip = next.listener, .port = next.listener_port };
	struct evk_listener *listener = bpf_map_lookup_elem(&evk_listeners, &at);
	/* Tunnels are as here, and not as at the other balancer. */
	if (listener && listener->way & WAY_TUNNEL && next.flags & DIRECT)
		next.flags |= TUNNEL;
	struct evk_nat_pair pair;
	struct evk_connection *old = bpf_map_lookup_elem(&evk_connections, &client);
	__u64 began = old ? old->began_ns : 0;
	int result = COPY_WRITTEN;
	if (old) {
		int same = is_same(old, &next);
		if (!(old->flags & COPIED)) {
			__u64 now = bpf_ktime_get_ns();
			if (!same || !has_moved(old, &next, now) || !end_connection(&client, old, END_CLOSED, now))
				return COPY_OWN;
			/* No longer counted: a copy from now on. */
			old->bytes_in = 0;
			old->bytes_out = 0;
			old->flags = next.flags;
			result = COPY_YIELDED;
		} else {
			result = COPY_UPDATED;
		}
		if (same) {
			__sync_fetch_and_or(&old->flags, next.flags & (ANSWERED | CLIENT_FIN | MEMBER_FIN));
			old->client_side = next.client_side;
			old->member_side = next.member_side;
			/* A packet may have come meanwhile, perhaps a stranger's: the next ones say the numbers again. */
			__sync_fetch_and_or(&old->flags, next.flags & (LOOSE_CLIENT | LOOSE_MEMBER));
			old->seat = next.seat;
			old->shift = next.shift;
			old->seen = next.seen;
			return result;
		}
		/* The client has used the port again. */
		delete_entry(&client, old, began, &pair);
	}
	fill_pair(&pair, &next);
	if (next.source_port) {
		long failed = bpf_map_update_elem(&evk_nat_pairs, &pair, &client, BPF_NOEXIST);
		if (failed)
			return failed == -EEXIST ? COPY_PORT : COPY_FULL;
	}
	long failed = bpf_map_update_elem(&evk_connections, &client, &next, BPF_NOEXIST);
	if (failed) {
		free_port(&pair);
		return failed == -EEXIST ? COPY_OWN : COPY_FULL;
	}
	return COPY_WRITTEN;
}

enum evk_end_result {
	ENDED_NOTHING,
	ENDED_COPY,
	ENDED_OWN,  /* a connection of this balancer, whose packets pass the other one */
	ENDED_LATER, /* the same, but packets have come here lately */
};

/* Removes a copy whose connection has ended at the other balancer. A connection of this balancer that was silent since
 * it moved ends, and stays for late packets as others. */
SEC("syscall")
int evk_end_copy(struct evk_copy_order *order)
{
	struct evk_address client = order->client;
	struct evk_connection ended = order->connection;
	struct evk_connection *copy = bpf_map_lookup_elem(&evk_connections, &client);
	__u64 began = copy ? copy->began_ns : 0;
	/* An end names no address of full NAT. */
	if (!copy || !is_equal(&copy->listener, &ended.listener) || !is_equal(&copy->member, &ended.member) ||
	    copy->listener_port != ended.listener_port || copy->member_port != ended.member_port)
		return ENDED_NOTHING;
	if (!(copy->flags & COPIED)) {
		__u64 now = bpf_ktime_get_ns();
		if (copy->flags & CLOSED)
			return ENDED_NOTHING;
		if ((__s32)(coarse(now) - copy->seen) < (__s32)YIELD)
			return ENDED_LATER;
		return end_connection(&client, copy, END_CLOSED, now) ? ENDED_OWN : ENDED_NOTHING;
	}
	struct evk_nat_pair pair;
	delete_entry(&client, copy, began, &pair);
	return ENDED_COPY;
}
