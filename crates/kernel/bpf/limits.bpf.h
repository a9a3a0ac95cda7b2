/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Limits of rules: a part of forward.bpf.c.
 *
 * `max_connections` of a rule counts all connections of the rule, and `limits` those of each client. Each count is an entry
 * of evk_limited: all clients of a rule together are a client without an address. The program and the process count in the
 * same entries. A connection above a limit is left to the process, which limits its client by the same entries (evk_place).
 *
 * The sender of a SYN may be forged. So a client's connections of TCP have two counts: from the SYN on they keep the program
 * from forwarding more, and from the client's confirmation on they keep the process from serving more. Forged SYNs lead the
 * client to the process, which serves the client. Clients of UDP cannot confirm, and count at once, as in the process.
 * src/forward/limits.rs has the same structures. */

#define MAX_EXCEPTIONS 16 /* networks without limits for each client, of a rule */
#define LIMITED_CLIENTS 65536

/* Flag of connections and sessions that count in evk_limited. */
#define LIMITED (1 << 18)

/* Count of a rule. Entries have the key, which another one replaces if the rule counts something else. */
struct evk_counted {
	__u64 identity; /* of what is counted: for the balancer */
	__u64 key;	/* first part of the entries' keys; 0: nothing is counted */
	__u64 from_ns;	/* connections that have begun before do not count */
};

struct evk_network {
	struct evk_ip ip;
	struct evk_ip mask;
};

/* Limits of a rule at a listening address. Written by the balancer. */
struct evk_limits {
	struct evk_counted all;
	struct evk_counted each;
	__u64 interval_ns;  /* time of one more connection of a client; 0: no limit */
	__u64 tolerance_ns; /* time by which a client may be ahead of this rate */
	__u32 most;	    /* open connections of all clients; 0: no limit */
	__u32 connections;  /* open connections of a client; 0: no limit */
	__u32 exceptions;   /* number of networks without limits for each client */
	__u32 zero;
	struct evk_ip mask4; /* bits of addresses that tell clients apart */
	struct evk_ip mask6;
	struct evk_network except[MAX_EXCEPTIONS];
};

/* Listening address with the protocol. */
struct evk_limit_place {
	struct evk_ip ip;
	__u16 port;
	__u16 protocol;
	__u32 zero;
};

struct evk_limited_key {
	__u64 key;
	struct evk_ip ip; /* 0: all clients */
};

/* What a client has used. */
struct evk_limited {
	__u64 due_ns;	 /* time until which confirmed connections, and those of the process, have used the rate */
	__u64 begun_ns;	 /* the same for all connections */
	__s32 open;	 /* connections here */
	__s32 confirmed; /* those that the client has confirmed */
	__s32 proxied;	 /* connections of the process */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048); /* listening addresses of TCP and UDP */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_limit_place);
	__type(value, struct evk_limits);
} evk_limits SEC(".maps");

/* No LRU: connections of a client that the kernel removes would be free. A client without an entry is left to the
 * process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LIMITED_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_limited_key);
	__type(value, struct evk_limited);
} evk_limited SEC(".maps");

/* Entry of a client that has used nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_limited);
} evk_unlimited SEC(".maps");

/* Key of either table: the stack has no room for both. */
union evk_limit_key {
	struct evk_limit_place place;
	struct evk_limited_key limited;
};

/* Steps of a connection. */
enum evk_limit_step {
	LIMIT_ADMIT, /* may the connection begin here? */
	LIMIT_BEGIN,
	LIMIT_ADD, /* goes to another member, or comes from another balancer */
	LIMIT_CONFIRM,
	LIMIT_END,
	LIMIT_CONFIRMED = 8, /* beside a step: the client has confirmed the connection, or does */
};

/* True if an address is in a network without limits for each client. */
static __always_inline int is_excepted(const struct evk_limits *limits, const struct evk_ip *ip)
{
	for (__u32 i = 0; i < MAX_EXCEPTIONS; i++) {
		if (i >= limits->exceptions)
			break;
		const struct evk_network *network = &limits->except[i];
		if ((ip->half[0] & network->mask.half[0]) == network->ip.half[0] &&
		    (ip->half[1] & network->mask.half[1]) == network->ip.half[1])
			return 1;
	}
	return 0;
}

/* True if a client is too far ahead of the rate. */
static __always_inline int is_ahead(const struct evk_limits *limits, __u64 due_ns, __u64 now)
{
	return limits->interval_ns && due_ns > now && due_ns - now > limits->tolerance_ns;
}

/* Counts a connection in a rate. */
static __always_inline void use_rate(const struct evk_limits *limits, __u64 *due_ns, __u64 now)
{
	if (!limits->interval_ns)
		return;
	/* Two CPUs may do this at once: then the client may begin one more. */
	if (*due_ns < now)
		*due_ns = now;
	__sync_fetch_and_add(due_ns, limits->interval_ns);
}

/* Finds the entry of a key, which is made if there is none. */
static __always_inline struct evk_limited *find_limited(const struct evk_limited_key *key)
{
	struct evk_limited *entry = bpf_map_lookup_elem(&evk_limited, key);
	if (entry)
		return entry;
	__u32 zero = 0;
	struct evk_limited *none = bpf_map_lookup_elem(&evk_unlimited, &zero);
	if (!none)
		return 0;
	bpf_map_update_elem(&evk_limited, key, none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&evk_limited, key);
}

/* Makes the key of a client. */
static __always_inline void fill_client_key(struct evk_limited_key *key, const struct evk_limits *limits,
					    const struct evk_ip *ip)
{
	const struct evk_ip *mask = is_ipv6(ip) ? &limits->mask6 : &limits->mask4;
	key->key = limits->each.key;
	key->ip.half[0] = ip->half[0] & mask->half[0];
	key->ip.half[1] = ip->half[1] & mask->half[1];
}

/* Counts a step in an entry. */
static __always_inline void count_step(struct evk_limited *entry, __u32 step, int is_confirmed)
{
	__s32 by = step == LIMIT_END ? -1 : 1;
	if (step != LIMIT_CONFIRM)
		__sync_fetch_and_add(&entry->open, by);
	if (is_confirmed)
		__sync_fetch_and_add(&entry->confirmed, by);
}

/* Asks for a connection that is to begin, or counts another step. Returns 0 if the process is to have the connection. */
static __always_inline int take_step(union evk_limit_key *key, const struct evk_ip *ip, __u32 step, int is_confirmed,
				     __u64 began, __u64 now)
{
	struct evk_limits *limits = bpf_map_lookup_elem(&evk_limits, &key->place);
	/* The process counts if the kernel has refused the limits. */
	if (!limits)
		return 0;
	__builtin_memset(key, 0, sizeof(*key));
	key->limited.key = limits->all.key;
	if (began >= limits->all.from_ns) {
		struct evk_limited *all = find_limited(&key->limited);
		if (!all)
			return 0;
		if (step != LIMIT_ADMIT)
			count_step(all, step, is_confirmed);
		else if (limits->most && (__s64)all->open + all->proxied >= limits->most)
			return 0;
	}
	if (!limits->each.key || began < limits->each.from_ns || is_excepted(limits, ip))
		return 1;
	fill_client_key(&key->limited, limits, ip);
	struct evk_limited *client = find_limited(&key->limited);
	if (!client)
		return 0;
	if (step == LIMIT_ADMIT)
		return (!limits->connections || (__s64)client->open + client->proxied < limits->connections) &&
		       !is_ahead(limits, client->due_ns, now) && !is_ahead(limits, client->begun_ns, now);
	count_step(client, step, is_confirmed);
	if (step == LIMIT_BEGIN)
		use_rate(limits, &client->begun_ns, now);
	if (step == LIMIT_CONFIRM || (step == LIMIT_BEGIN && is_confirmed))
		use_rate(limits, &client->due_ns, now);
	return 1;
}

/* The same for a connection of TCP. Functions of their own, which the verifier checks once. */
__attribute__((noinline)) int evk_limit_connection(const struct evk_address *client,
						   const struct evk_connection *connection, __u32 step, __u64 now)
{
	if (!client || !connection)
		return 0;
	union evk_limit_key key = { .place.port = connection->listener_port, .place.protocol = IPPROTO_TCP };
	key.place.ip = connection->listener;
	return take_step(&key, &client->ip, step & ~LIMIT_CONFIRMED, step & LIMIT_CONFIRMED, connection->began_ns, now);
}

/* The same for a session of UDP between a client and a listening address. */
__attribute__((noinline)) int evk_limit_session(const struct evk_address *client, const struct evk_address *listener,
						__u32 step, __u64 began)
{
	if (!client || !listener)
		return 0;
	union evk_limit_key key = { .place.port = listener->port, .place.protocol = IPPROTO_UDP };
	key.place.ip = listener->ip;
	return take_step(&key, &client->ip, step, 1, began, began);
}

/* Connection of the process. */
struct evk_place_order {
	struct evk_limit_place place;
	struct evk_ip client;
	struct evk_limited_key all; /* entries of the connection, written when it begins; keys of 0 for none */
	struct evk_limited_key each;
	__u32 has_client; /* 0: counts for all clients together only */
	__u32 is_over;
};

/* Answers to the process. */
enum evk_place_answer { PLACE_COUNTED, PLACE_CONNECTIONS, PLACE_RATE };

/* Ends the count of a connection of the process. */
static __always_inline void leave_place(const struct evk_limited_key *of)
{
	struct evk_limited_key key = *of;
	struct evk_limited *entry = key.key ? bpf_map_lookup_elem(&evk_limited, &key) : 0;
	if (entry)
		__sync_fetch_and_add(&entry->proxied, -1);
}

/* Counts a connection of the process, unless its client is at a limit. */
static __always_inline int take_place(struct evk_place_order *order)
{
	__u64 now = bpf_ktime_get_ns();
	order->all.key = 0;
	order->each.key = 0;
	struct evk_limits *limits = bpf_map_lookup_elem(&evk_limits, &order->place);
	if (!limits)
		return PLACE_COUNTED;
	struct evk_limited_key key;
	if (order->has_client && limits->each.key && !is_excepted(limits, &order->client)) {
		fill_client_key(&key, limits, &order->client);
		struct evk_limited *client = find_limited(&key);
		if (client && limits->connections &&
		    (__s64)client->confirmed + client->proxied >= limits->connections)
			return PLACE_CONNECTIONS;
		if (client && is_ahead(limits, client->due_ns, now))
			return PLACE_RATE;
		if (client) {
			__sync_fetch_and_add(&client->proxied, 1);
			use_rate(limits, &client->due_ns, now);
			use_rate(limits, &client->begun_ns, now);
			order->each = key;
		}
	}
	__builtin_memset(&key, 0, sizeof(key));
	key.key = limits->all.key;
	struct evk_limited *all = find_limited(&key);
	if (all) {
		__sync_fetch_and_add(&all->proxied, 1);
		order->all = key;
	}
	return PLACE_COUNTED;
}

/* Counts a connection of the process likewise, or ends the count. */
SEC("syscall")
int evk_place(struct evk_place_order *order)
{
	/* The verifier lets no pointer into the order be kept. */
	struct evk_place_order here = *order;
	if (here.is_over) {
		leave_place(&here.all);
		leave_place(&here.each);
		return PLACE_COUNTED;
	}
	int answer = take_place(&here);
	order->all = here.all;
	order->each = here.each;
	return answer;
}

struct evk_limited_sweep {
	__u64 now;
	__u32 forgets_process; /* not 0: the process that has counted before is gone */
	__u32 zero;
};

/* Removes an entry that has used nothing. */
static long sweep_limited(void *map, struct evk_limited_key *of, struct evk_limited *entry,
			  struct evk_limited_sweep *sweep)
{
	struct evk_limited_key key = *of;
	if (sweep->forgets_process)
		entry->proxied = 0;
	if (entry->open <= 0 && entry->proxied <= 0 && entry->due_ns <= sweep->now && entry->begun_ns <= sweep->now)
		bpf_map_delete_elem(&evk_limited, &key);
	return 0;
}

/* Removes the entries that have used nothing. */
SEC("syscall")
int evk_sweep_limited(struct evk_limited_sweep *order)
{
	struct evk_limited_sweep sweep = *order;
	bpf_for_each_map_elem(&evk_limited, sweep_limited, &sweep, 0);
	return 0;
}
