/* Requests within connections: the client's data, and the member's answer to them.
 *
 * A request begins with the client's first data after the member's, and its latency ends with the member's first data
 * thereafter. So a connection has one request under way while its client waits, and none while the connection is idle.
 * This is true if both sides speak in turn, and the numbers of TCP show where they do not: the client writes once more
 * before an answer (pipelining, uploads, messages without answers), or before it has all of the answer; or the member
 * sends what does not acknowledge the client's data (messages unasked). Such a connection is MIXED: nothing of it counts
 * until the sides have spoken in turn for a while. Data that come again count neither.
 *
 * With direct answers the member's data are not seen: nothing counts. */

/* Clock of requests: units of 4,096 ns, of which 32 bits wrap after 4.9 hours. A latency is a multiple, but right on
 * average. */
static __always_inline __u64 request_clock(__u64 ns)
{
	return ns >> 12;
}

#define AWAITED_MASK 0xfffffULL

/* A request with this beginning in `evk_counts.awaited`. */
static __always_inline __u64 count_request(__u64 begun)
{
	return begun << 20 | 1;
}

/* Ends the count of a request that had these flags. Returns the latency. */
static __always_inline __u32 end_request(struct evk_connection *connection, struct evk_counts *counts, __u64 now)
{
	__u64 clock = request_clock(now);
	__u32 latency = (__u32)clock - connection->asked;
	/* Clocks of two CPUs may differ by a unit. */
	__u64 age = (__s32)latency < 0 && latency > -16U ? -(__u64)-latency : latency;
	__sync_fetch_and_add(&counts->awaited, -count_request(clock - age));
	return (__s64)age < 0 ? 0 : latency;
}

/* Ends a request without an answer, if one is under way. */
static __always_inline void forget_request(struct evk_connection *connection, struct evk_counts *counts, __u64 now)
{
	if (!(connection->flags & AWAITED))
		return;
	if (__sync_fetch_and_and(&connection->flags, ~(AWAITED | OTHERS_BITS)) & AWAITED && counts)
		end_request(connection, counts, now ? now : bpf_ktime_get_ns());
}

/* Notes that the sides do not speak in turn. */
static __always_inline void note_mixed(struct evk_connection *connection, struct evk_counts *counts, __u32 more, __u64 now)
{
	if ((connection->flags & (MIXED | more)) != (MIXED | more))
		__sync_fetch_and_or(&connection->flags, MIXED | more);
	forget_request(connection, counts, now);
}

/* Notes new data of the client. `is_pushed`: they end a write. `has_all`: the client has all of the member's data. `now`
 * may be 0: the clock is read if the time is needed. */
static __always_inline void note_question(struct evk_connection *connection, int is_pushed, int has_all, __u64 now)
{
	__u32 flags = connection->flags, written = is_pushed ? WRITTEN : 0;
	if (flags & CLOSED)
		return;
	if (flags & ASKED && !(flags & WRITTEN)) {
		if (written)
			__sync_fetch_and_or(&connection->flags, written);
		return;
	}
	__u32 seat = connection->seat;
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!counts)
		return;
	if (flags & ASKED || !has_all) {
		note_mixed(connection, counts, ASKED | written, now);
		return;
	}
	if (flags & MIXED) {
		__sync_fetch_and_or(&connection->flags, ASKED | written);
		return;
	}
	__u64 begun = request_clock(now ? now : bpf_ktime_get_ns());
	__u64 others = counts->awaited & AWAITED_MASK;
	if (others > MOST_OTHERS)
		others = MOST_OTHERS;
	connection->asked = begun;
	flags = ASKED | AWAITED | written | (__u32)others << OTHERS_AT;
	if (!(__sync_fetch_and_or(&connection->flags, flags) & AWAITED))
		__sync_fetch_and_add(&counts->awaited, count_request(begun));
}

/* Notes new data of the member. `has_all`: the member has all of the client's data. */
static __always_inline void note_answer(struct evk_connection *connection, struct evk_counts *counts, int has_all,
					__u64 now)
{
	if (!(connection->flags & ASKED) || !counts)
		return;
	if (!has_all) {
		note_mixed(connection, counts, 0, now);
		return;
	}
	__u32 flags = __sync_fetch_and_and(&connection->flags, ~(ASKED | AWAITED | WRITTEN | OTHERS_BITS));
	if (flags & AWAITED) {
		__u64 latency = end_request(connection, counts, now ? now : bpf_ktime_get_ns());
		__u64 others = flags >> OTHERS_AT;
		__sync_fetch_and_add(&counts->requests, 1);
		__sync_fetch_and_add(&counts->request_time, latency);
		__sync_fetch_and_add(&counts->request_others, others);
		counts->request_last = others << 32 | latency;
	} else if (flags & ASKED && flags & MIXED) {
		__sync_fetch_and_add(&connection->flags, -MIXED_ONE);
	}
}
