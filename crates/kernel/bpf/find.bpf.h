/* Connections of packets: by the client's address, or with full NAT by the addresses that the member sees. A hint says
 * which table has the packet's connection, so that most packets need one look-up, and those of members with full NAT two. */

/* Ports of packets' receivers, a bit each: those of listeners, and those that members see with full NAT. Written by the
 * balancer. A hint may be wrong, and costs look-ups then. */
struct evk_hints {
	__u64 listeners[1024];
	__u64 sources[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_hints);
} evk_hints SEC(".maps");

/* Connection of a packet. */
struct found {
	struct evk_connection *connection; /* 0: none */
	const struct evk_address *client;
	int is_of_client;
	/* Of a first packet, as far as they were looked for; 0 if not. The client's entry may be one with another listener. */
	struct evk_connection *entry;
	struct evk_listener *listener;
};

/* True if a client's entry is a connection to a listener. */
static __always_inline int is_to(const struct evk_connection *entry, const struct evk_address *listener)
{
	return is_equal(&entry->listener, &listener->ip) && entry->listener_port == listener->port;
}

/* Finds the connection of a client's packet to a listener. */
static __always_inline struct evk_connection *find_of_client(const struct evk_address *client,
							     const struct evk_address *listener)
{
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, client);
	return connection && is_to(connection, listener) ? connection : 0;
}

/* Finds the client of a member's packet to an address of the balancer, with full NAT. */
static __always_inline struct evk_address *find_client(const struct evk_address *source,
						       const struct evk_address *member)
{
	struct evk_scratch *scratch = find_scratch();
	if (!scratch)
		return 0;
	scratch->pair.member = *member;
	scratch->pair.source = *source;
	return bpf_map_lookup_elem(&evk_nat_pairs, &scratch->pair);
}

/* Finds the connection of a member's packet to a client. */
static __always_inline struct evk_connection *find_of_member(const struct evk_address *client,
							     const struct evk_address *member)
{
	struct evk_connection *connection = bpf_map_lookup_elem(&evk_connections, client);
	if (!connection)
		return 0;
	/* With direct answers members have the listener's address. */
	const struct evk_ip *ip = connection->flags & DIRECT ? &connection->listener : &connection->member;
	__u16 port = connection->flags & DIRECT ? connection->listener_port : connection->member_port;
	return is_equal(ip, &member->ip) && port == member->port ? connection : 0;
}

/* Finds the connection of a packet to a port of full NAT. */
static __always_inline struct evk_connection *find_of_source(const struct headers *head, struct found *found)
{
	struct evk_address *client = find_client(&head->to, &head->from);
	found->client = client;
	return client ? find_of_member(client, &head->from) : 0;
}

/* Finds the connection of a packet. `begins`: a client's first packet, which no member sends to a listener. */
static __always_inline void find_connection(const struct headers *head, struct found *found, int begins)
{
	__u32 zero = 0, port = bpf_ntohs(head->to.port), word = port >> 6 & 1023;
	/* The verifier of Linux 6.1 sees no limit in what the compiler would make of this place and the size of an element. */
	barrier_var(word);
	struct evk_hints *hints = bpf_map_lookup_elem(&evk_hints, &zero);
	__u64 bit = 1ULL << (port & 63);
	int is_listener = hints && hints->listeners[word] & bit;
	int is_source = hints && hints->sources[word] & bit;
	found->client = &head->from;
	found->is_of_client = 1;
	found->connection = 0;
	found->entry = 0;
	found->listener = 0;
	if (is_listener || begins) {
		found->entry = bpf_map_lookup_elem(&evk_connections, &head->from);
		if (found->entry && is_to(found->entry, &head->to)) {
			found->connection = found->entry;
			return;
		}
	}
	if (begins) {
		found->listener = bpf_map_lookup_elem(&evk_listeners, &head->to);
		if (found->listener)
			return;
	}
	found->is_of_client = 0;
	found->connection = is_source ? find_of_source(head, found) : 0;
	if (found->connection)
		return;
	found->client = &head->to;
	found->connection = find_of_member(&head->to, &head->from);
	if (found->connection)
		return;
	if (!is_source)
		found->connection = find_of_source(head, found);
	if (found->connection || is_listener || begins)
		return;
	found->client = &head->from;
	found->is_of_client = 1;
	found->connection = find_of_client(&head->from, &head->to);
}
