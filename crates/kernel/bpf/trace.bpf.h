/* Packets of one client, told to an administrator (`evenkeel kernel trace`). Included by forward.bpf.c. While nobody
 * traces, a packet costs one look at an element of an array. */

struct evk_trace {
	__u64 until_ns; /* end of the trace; 0: nobody traces */
	struct evk_address client; /* port 0: all ports */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_trace);
} evk_trace SEC(".maps");

/* Header of a packet, as far as a trace shows it. */
struct evk_traced_header {
	struct evk_address from;
	struct evk_address to;
	__u32 sequence;
	__u32 answered;
	__u32 length; /* bytes behind the header of TCP or UDP */
	__u8 protocol;
	__u8 flags; /* TCP */
	__u16 zero;
};

struct evk_traced_packet {
	__u64 ns;
	__u32 interface;
	__s32 answer; /* of the program to tc */
	__u32 outcomes; /* a bit for each that the packet was counted as */
	__u32 lost; /* packets before for which there was no room */
	struct evk_traced_header before;
	struct evk_traced_header after;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} evk_traced SEC(".maps");

/* A packet under way, and the counts of this processor before it. */
struct evk_trace_scratch {
	__u64 counts[OUTCOMES];
	struct evk_traced_packet packet;
	__u32 lost;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_trace_scratch);
} evk_trace_scratch SEC(".maps");

/* Finds the trace that runs. */
static __always_inline struct evk_trace *find_trace(void)
{
	__u32 zero = 0;
	struct evk_trace *trace = bpf_map_lookup_elem(&evk_trace, &zero);
	return trace && trace->until_ns && bpf_ktime_get_ns() < trace->until_ns ? trace : 0;
}

static __always_inline struct evk_trace_scratch *find_trace_scratch(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&evk_trace_scratch, &zero);
}

/* Reads the header of a packet. Returns -1 if there are no ports that it can show. */
static __always_inline int read_traced(struct __sk_buff *skb, struct evk_traced_header *out)
{
	__u32 at = ETH_HLEN, end = skb->len;
	__builtin_memset(out, 0, sizeof(*out));
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return -1;
		map_ipv4(&out->from.ip, ip.saddr);
		map_ipv4(&out->to.ip, ip.daddr);
		out->protocol = ip.protocol;
		at += ip.ihl * 4;
		/* Later fragments have no ports. */
		if (ip.frag_off & bpf_htons(0x1fff))
			return 0;
	} else {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return -1;
		copy_ipv6(&out->from.ip, &ip.saddr);
		copy_ipv6(&out->to.ip, &ip.daddr);
		out->protocol = ip.nexthdr;
		at += sizeof(ip);
	}
	if (!is_of_listeners(out->protocol))
		return 0;
	__u16 ports[2];
	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	out->from.port = ports[0];
	out->to.port = ports[1];
	__u32 header = 8;
	if (out->protocol == IPPROTO_TCP) {
		struct tcphdr tcp;
		if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
			return 0;
		out->sequence = bpf_ntohl(tcp.seq);
		out->answered = bpf_ntohl(tcp.ack_seq);
		out->flags = ((__u8 *)&tcp)[13];
		header = tcp.doff * 4;
	}
	out->length = end > at + header ? end - at - header : 0;
	return 0;
}

static __always_inline int is_traced(const struct evk_trace *trace, const struct evk_address *address)
{
	return is_equal(&trace->client.ip, &address->ip) && (!trace->client.port || trace->client.port == address->port);
}

/* Notes a packet before it is forwarded. Returns 0 if nobody traces. */
static __attribute__((noinline)) int begin_trace(struct __sk_buff *skb)
{
	struct evk_trace *trace = find_trace();
	struct evk_trace_scratch *scratch = find_trace_scratch();
	if (!trace || !scratch || read_traced(skb, &scratch->packet.before))
		return 0;
	for (__u32 outcome = 0; outcome < OUTCOMES; outcome++) {
		__u32 key = outcome;
		__u64 *counter = bpf_map_lookup_elem(&evk_outcomes, &key);
		scratch->counts[outcome] = counter ? *counter : 0;
	}
	return 1;
}

/* Tells a packet that was noted before, if it is of the client, with what has become of it. */
static __attribute__((noinline)) int end_trace(struct __sk_buff *skb, int answer)
{
	struct evk_trace *trace = find_trace();
	struct evk_trace_scratch *scratch = find_trace_scratch();
	if (!trace || !scratch)
		return 0;
	struct evk_traced_packet *packet = &scratch->packet;
	if (answer == TC_ACT_SHOT || read_traced(skb, &packet->after))
		packet->after = packet->before;
	if (!is_traced(trace, &packet->before.from) && !is_traced(trace, &packet->before.to) &&
	    !is_traced(trace, &packet->after.to))
		return 0;
	packet->outcomes = 0;
	for (__u32 outcome = 0; outcome < OUTCOMES; outcome++) {
		__u32 key = outcome;
		__u64 *counter = bpf_map_lookup_elem(&evk_outcomes, &key);
		if (counter && *counter != scratch->counts[outcome])
			packet->outcomes |= 1U << outcome;
	}
	packet->ns = bpf_ktime_get_ns();
	packet->interface = skb->ingress_ifindex;
	packet->answer = answer;
	packet->lost = scratch->lost;
	scratch->lost = bpf_ringbuf_output(&evk_traced, packet, sizeof(*packet), 0) ? scratch->lost + 1 : 0;
	return 0;
}
