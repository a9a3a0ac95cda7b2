/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Decisions by a hash of the client's address: part of forward.bpf.c.
 *
 * Each member has a score for each address, and the lowest one wins, as in `evenkeel_core::hash_terms`: a connection that
 * its member refuses, and the clients of a member that is gone, find the member with the next score. Members over the
 * bound come behind all others. */

/* Numbers with bits behind the point: chances of members, their logarithms, and the bound. */
#define CHANCE_BITS 24
#define LOG_BITS 26
#define BOUND_BITS 14

/* Logarithm of a chance of 0. */
#define HIGHEST_LOG (31ULL << LOG_BITS)
/* Most connections at a member that are told apart. */
#define MOST_CONNECTIONS 0xfffffU
/* Added to the score of a member over the bound. */
#define OVER_BOUND (1ULL << 63)

/* FNV-1a. */
#define HASH_BASIS 0xcbf29ce484222325ULL
#define HASH_PRIME 0x100000001b3ULL

/* Mixes the bits of a number: the last step of SplitMix64 (Steele, Lea and Flood, 2014). */
static __always_inline __u64 mix_hash(__u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static __always_inline __u64 hash_byte(__u64 hash, __u8 byte)
{
	return (hash ^ byte) * HASH_PRIME;
}

/* Key of a client's address. */
static __always_inline __u64 hash_client(const struct evk_ip *ip)
{
	const __u8 *bytes = (const __u8 *)ip;
	__u64 hash = HASH_BASIS;
	if (is_ipv6(ip)) {
		for (int i = 0; i < 12; i++)
			hash = hash_byte(hash, bytes[i]);
	}
	for (int i = 12; i < 16; i++)
		hash = hash_byte(hash, bytes[i]);
	return mix_hash(hash);
}

/* Negative binary logarithm of a chance. */
static __always_inline __u64 log_chance(__u32 chance)
{
	if (!chance)
		return HIGHEST_LOG;
	__u64 square = (__u64)chance << (32 - CHANCE_BITS), zeros = 0, fraction = 0;
	for (int i = 0; i < CHANCE_BITS; i++) {
		if (square >> 31)
			break;
		square <<= 1;
		zeros++;
	}
	/* Each square is one more bit of the logarithm. */
	for (int i = 0; i < LOG_BITS; i++) {
		square = square * square >> 31;
		__u64 bit = square >> 32;
		square >>= bit & 1;
		fraction = fraction << 1 | bit;
	}
	return ((1 + zeros) << LOG_BITS) - fraction;
}

/* Score of a seat, the lowest wins; NO_SCORE if the member may not get a connection. A member that cannot win has at most its
 * score, unless the decision is told. `asked` is of `enum evk_asked`. */
__attribute__((noinline)) __u64 evk_score_by_hash(__u32 seat, __u32 asked)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!best || !terms || !counts)
		return NO_SCORE;
	__u64 busy = count_busy(seat, asked, terms, counts);
	if (busy == NO_SEAT)
		return NO_SCORE;
	if (busy > MOST_CONNECTIONS)
		busy = MOST_CONNECTIONS;
	int is_over = best->limit && (busy * best->weight) << BOUND_BITS >= best->limit * terms->weight;
	__u64 over = is_over ? OVER_BOUND : 0;
	__u32 chance = mix_hash(best->key ^ terms->name_hash) >> (64 - CHANCE_BITS);
	/* A logarithm is at least the distance from 1: most members need none to lose. */
	__u64 least = (__u64)((1U << CHANCE_BITS) - chance) << (LOG_BITS - CHANCE_BITS);
	least = least * terms->base + over;
	return least >= best->score && !best->is_told ? least : log_chance(chance) * terms->base + over;
}

/* Adds the connections and the weight of a seat to the sums of a decision. A function of its own, which the verifier checks
 * once. `asked` is of `enum evk_asked`. */
__attribute__((noinline)) int evk_add_seat(__u32 seat, __u32 asked)
{
	__u32 zero = 0;
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	struct evk_terms *terms = bpf_map_lookup_elem(&evk_terms, &seat);
	struct evk_counts *counts = bpf_map_lookup_elem(&evk_counts, &seat);
	if (!best || !terms || !counts)
		return 0;
	__u64 busy = count_busy(seat, asked, terms, counts);
	if (busy == NO_SEAT)
		return 0;
	best->limit += busy > MOST_CONNECTIONS ? MOST_CONNECTIONS : busy;
	best->weight += terms->weight;
	return 1;
}

/* Begins a decision by hash for the client, among the seats that are listed: works out the key, and the bound. */
__attribute__((noinline)) int evk_begin_hash(__u32 number)
{
	__u32 zero = 0;
	struct evk_group *group = bpf_map_lookup_elem(&evk_groups, &number);
	struct evk_best *best = bpf_map_lookup_elem(&evk_best, &zero);
	__u64 *next = bpf_map_lookup_elem(&evk_samples, &number);
	if (!group || !best || !next)
		return 0;
	__u32 asked = ask_seats(best, FORM_HASH);
	best->is_told = bpf_ktime_get_ns() >= *next;
	best->key = hash_client(&best->client.ip);
	best->weight = 0;
	best->limit = 0;
	if (!group->bound)
		return 1;
	/* The connection to come counts, too. */
	best->limit = 1;
	for (__u32 i = 0; i < GROUP_SEATS; i++) {
		if (i >= best->count)
			break;
		evk_add_seat(best->seats[i], asked);
	}
	best->limit *= group->bound;
	return 1;
}
