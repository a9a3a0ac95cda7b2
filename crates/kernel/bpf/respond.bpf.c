/* The responder: answers queries for the load of this machine within the kernel, before any
 * process, and mostly before the network stack. ../src/query.rs describes the datagrams.
 *
 * One code for two places: XDP, where the answer leaves with XDP_TX, and traffic control
 * (ingress), where it is redirected to the interface that it came by.
 *
 * What is done with a packet, in this order:
 *  1. It is no UDP in IPv4 or IPv6 (behind up to two VLAN tags) to our port, has IP options,
 *     extension headers or is a fragment, or went to a multicast or broadcast MAC address:
 *     passed on, untouched.
 *  2. Its source is not allowed, or it does not begin as a query: passed on, counted.
 *  3. It has a wrong version, length, kind or reserved field, an unknown key, a wrong
 *     authentication code, is meant for another host, has an old number, is one too many, or
 *     asks for a target that is not there: dropped, and counted.
 *  4. Else the record is written into it and it goes back, exactly as long as it came.
 */
#include "fill.bpf.h"

#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define UDP 17
#define TCP_LISTEN 10
#define AF_INET 2
#define AF_INET6 10
#define TC_ACT_UNSPEC -1 /* the next filter, then the stack */
#define TC_ACT_SHOT 2

#define EVK_ENVELOPE sizeof(struct evk_envelope)
#define EVK_SHORT (EVK_ENVELOPE + sizeof(struct evk_base))
#define EVK_WITH_PORTS (EVK_SHORT + EVK_PORTS * sizeof(struct evk_port))
#define EVK_ENTRIES 4
#define EVK_LONGEST (EVK_WITH_PORTS + EVK_ENTRIES * sizeof(struct evk_cpu))

/* What became of packets; ../src/attach/mod.rs has their names. */
enum evk_counter {
	EVK_ANSWERED,
	EVK_SOURCE,  /* passed on: the source is not allowed */
	EVK_OTHER,   /* passed on: no query */
	EVK_BAD_VERSION,
	EVK_BAD_LENGTH,
	EVK_BAD_FIELD,
	EVK_BAD_KEY,
	EVK_BAD_MAC,
	EVK_REPLAYED,
	EVK_TOO_MANY,
	EVK_NO_TARGET,
	EVK_GONE,    /* the target's cgroup is no more */
	EVK_OTHER_HOST,
	EVK_COUNTERS
};

struct evk_config {
	u32 layout;      /* of these maps: the loader's business */
	u32 mode;        /* how it is attached: the loader's business, too */
	u32 interface;
	u32 skb;         /* packets may have come from this machine, without a checksum yet */
	u32 made_qdisc;  /* and this, and where the filter is */
	u32 priority;
	u32 handle;
	u16 port;        /* network byte order */
	u16 ports;
	u16 listen[EVK_PORTS];
	u64 interval_ns; /* between queries of a source; 0: any number */
	u64 burst_ns;
	u64 namespace_id;
	u64 updates;     /* of records, so far */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_config);
} evk_config SEC(".maps");

struct evk_secret {
	u64 k0, k1;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, struct evk_secret);
} evk_keys SEC(".maps");

/* By which names this machine goes: ../src/host.rs. Balancers say whom they mean, so that what
 * another back-end with the same key answers is not taken for what this one says. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u32);
} evk_hosts SEC(".maps");

struct evk_prefix4 {
	u32 length;
	u8 address[4];
};

struct evk_prefix6 {
	u32 length;
	u8 address[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_prefix4);
	__type(value, u32);
} evk_allow4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_prefix6);
	__type(value, u32);
} evk_allow6 SEC(".maps");

/* The last number of each reader. Only authenticated queries get in. The loader adds to the
 * entries of this map and the next what CPUs keep to themselves. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} evk_readers SEC(".maps");

struct evk_source_address {
	u8 address[16];
} __attribute__((aligned(8)));

/* A source that has asked with a right code, so that its next query needs one look-up instead of
 * four: it is allowed, and what its key and its name for this machine are. But for `due_ns`, an
 * entry never changes. No file holds this map: with other keys, sources or names the loader loads
 * these programs anew, and then nothing is known. */
struct evk_known {
	u64 due_ns; /* when its next query would be due if it asked as often as it may */
	struct evk_secret secret;
	u64 host;
	u32 key;
	u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct evk_source_address);
	__type(value, struct evk_known);
} evk_known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVK_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} evk_counters SEC(".maps");

struct evk_timer {
	struct bpf_timer timer;
};

/* One for each target. They run as long as this map is held. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_TARGETS);
	__type(key, u32);
	__type(value, struct evk_timer);
} evk_timers SEC(".maps");

/* Where a record is made. XDP and ingress run in soft interrupts, of which a CPU has one at a
 * time. */
struct evk_scratch {
	struct evk_base base;
	struct evk_port port[EVK_PORTS];
	struct evk_cpu cpu[EVK_ENTRIES];
	struct evk_glance fresh;
	/* What was found out about the packet. */
	u32 ip;      /* offset of the IP header */
	u32 udp;     /* and of the UDP header */
	u32 payload; /* bytes in the datagram */
	struct evk_source_address source, destination;
	struct evk_known known; /* what is about the source; the stack has no room for it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_scratch);
} evk_scratch SEC(".maps");

struct ethernet {
	u8 to[6], from[6];
	u16 type;
} __attribute__((packed, aligned(2)));

struct vlan {
	u16 tag, type;
};

struct ipv4 {
	u8 version_length, tos;
	u16 length, id, fragment;
	u8 ttl, protocol;
	u16 check;
	u32 from, to;
} __attribute__((packed, aligned(4)));

struct ipv6 {
	u32 version_class_flow;
	u16 length;
	u8 next, hop_limit;
	u32 from[4], to[4];
} __attribute__((packed, aligned(4)));

struct udp {
	u16 from, to, length, check;
} __attribute__((packed, aligned(2)));

static __always_inline struct evk_scratch *evk_the_scratch(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&evk_scratch, &zero);
}

static __always_inline void evk_count(u32 what)
{
	u64 *counter = bpf_map_lookup_elem(&evk_counters, &what);

	if (counter)
		*counter += 1; /* of this CPU only */
}

/* SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein, 2012). */
struct evk_sip {
	u64 v0, v1, v2, v3;
};

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (64 - (by))))

static __always_inline void evk_sip_round(struct evk_sip *s)
{
	s->v0 += s->v1;
	s->v1 = ROTATE(s->v1, 13) ^ s->v0;
	s->v0 = ROTATE(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = ROTATE(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = ROTATE(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = ROTATE(s->v1, 17) ^ s->v2;
	s->v2 = ROTATE(s->v2, 32);
}

static __always_inline void evk_sip_begin(struct evk_sip *s, const struct evk_secret *key)
{
	s->v0 = key->k0 ^ 0x736f6d6570736575ull;
	s->v1 = key->k1 ^ 0x646f72616e646f6dull;
	s->v2 = key->k0 ^ 0x6c7967656e657261ull;
	s->v3 = key->k1 ^ 0x7465646279746573ull;
}

static __always_inline void evk_sip_word(struct evk_sip *s, u64 word)
{
	s->v3 ^= word;
	evk_sip_round(s);
	evk_sip_round(s);
	s->v0 ^= word;
}

/* After whole words of `length` bytes together. */
static __always_inline u64 evk_sip_end(struct evk_sip *s, u64 length)
{
	evk_sip_word(s, length << 56);
	s->v2 ^= 0xff;
	evk_sip_round(s);
	evk_sip_round(s);
	evk_sip_round(s);
	evk_sip_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* Checksums of the internet: sums of 16-bit words in one's complement, whatever the order of
 * bytes. */
static __always_inline u64 evk_sum64(u64 sum, u64 word)
{
	return sum + (word & 0xffffffff) + (word >> 32);
}

static __always_inline u16 evk_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Looks at a cgroup's part of a CPU, as evk_look does at a CPU. */
__noinline int evk_look_group(const struct evk_glance *at, struct evk_glance *out)
{
	struct cfs_rq___queued *queued = 0;
	struct cfs_rq___limbo *limbo = 0;

	if (!at || !out)
		return 0;

	u64 queue = at->base;
	u32 running;

	if (bpf_core_field_exists(queued->h_nr_queued))
		running = EVK_GET(struct cfs_rq___queued, queue, h_nr_queued);
	else
		running = EVK_GET(struct cfs_rq, queue, h_nr_running);
	/* Since 6.18 tasks that the quota holds back are taken off the queue. They wait for a
	 * CPU all the same. The list may change meanwhile: no more than so many steps. */
	if (queue && bpf_core_field_exists(limbo->throttled_limbo_list)) {
		u64 head = queue + bpf_core_field_offset(struct cfs_rq___limbo,
							 throttled_limbo_list);
		u64 next = head;

		for (int i = 0; i < 128; i++) {
			next = evk_word(next);
			if (!next || next == head)
				break;
			running++;
		}
	}
	out->running = running;
	out->busy_ns = EVK_GET(struct sched_entity, at->thread, sum_exec_runtime);
	out->backlog = out->threads = out->pending = 0;
	return 1;
}

/* Whether the cgroup of a target is still the one that it was. Its memory may have been given
 * to something else since, so nothing in it is believed before. */
static __always_inline bool evk_alive(const struct evk_target *target)
{
	u64 cgroup, node;

	if (!(EVK_GET(struct task_group, target->group, css.flags) & EVK_CSS_ONLINE))
		return false;
	cgroup = (u64)EVK_GET(struct task_group, target->group, css.cgroup);
	node = (u64)EVK_GET(struct cgroup, cgroup, kn);
	return EVK_GET(struct kernfs_node, node, id) == target->id;
}

/* Thousandths of a CPU that a task group may use: the least of its and its parents' quotas. */
__noinline int evk_quota(u32 number)
{
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);
	u64 least = EVK_MAX_CPUS * 1000;
	struct task_group *group;

	if (!target)
		return least;
	group = (void *)target->group;
	for (int i = 0; i < 8; i++) {
		u64 quota, period;

		if (!group || !bpf_core_field_exists(group->cfs_bandwidth))
			break;
		quota = BPF_CORE_READ(group, cfs_bandwidth.quota);
		period = BPF_CORE_READ(group, cfs_bandwidth.period);
		/* No quota is all bits; a real one is below a day. */
		if (period && quota < 86400000000000ull && quota * 1000 / period < least)
			least = quota * 1000 / period;
		group = BPF_CORE_READ(group, parent);
	}
	return least ? least : 1;
}

/* Everything that may be asked for is made by a timer, every 10 ms: the record of each target,
 * but for what stands in the query, and a glance at each CPU that is on. A query copies the record
 * and looks at EVK_FRESH CPUs again; so what loads are made of is of the moment of the query with
 * that many CPUs, and with more the query costs no more. There the sums hold the glances of
 * the timer for the others, and the time of the record is the mean of the times at which CPUs
 * were looked at: over a difference of two such records busy time is exact. Which CPUs are
 * looked at changes with every tick, and never between two, so no CPU's time ever goes back.
 *
 * The timer writes the half of what it keeps that nobody reads, then numbers change. A reader
 * would have to take as long as two ticks to see the half that it reads written. */
#define EVK_FRESH 8
/* A tick looks at that many CPUs of all targets together, or they are made less often. */
#define EVK_LOOKS 1024

struct evk_made {
	u64 generation; /* of the half that is read; 0: nothing was made yet */
	u32 changed;    /* a CPU has come or gone since the last tick */
	u32 unused;
	u32 fresh[2];   /* the first place that queries look at */
	struct evk_base base[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_TARGETS);
	__type(key, u32);
	__type(value, struct evk_made);
} evk_made SEC(".maps");

/* For each target two halves of a place per CPU that is on, in the order of their numbers. The
 * loader makes it as large as this machine's CPUs need. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * EVK_TARGETS * EVK_MAX_CPUS);
	__type(key, u32);
	__type(value, struct evk_glance);
} evk_glances SEC(".maps");

/* The counters of each CPU that the sums of the machine have in them; loads need none of them,
 * so of many CPUs only some are read anew at a tick. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_MAX_CPUS);
	__type(key, u32);
	__type(value, struct evk_cpu);
} evk_counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_cpu);
} evk_one SEC(".maps");

static __always_inline struct evk_glance *evk_glance_of(u32 number, u32 half, u32 place,
							const struct evk_facts *facts)
{
	u32 at = (number * 2 + half) * facts->possible + place;

	return bpf_map_lookup_elem(&evk_glances, &at);
}

static __always_inline u32 evk_half(u64 generation)
{
	return generation & 1;
}

/* Looks at a CPU of a target for the record that the timer makes, if it is on. */
__noinline int evk_tick_cpu(u32 number, u32 cpu, u64 now)
{
	struct evk_facts *facts = evk_the_facts();
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &number);
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);
	u64 base = evk_base_of(cpu);

	if (!facts || !made || !target || !base || !evk_online(base, facts))
		return 0;

	u32 half = evk_half(made->generation + 1);
	struct evk_base *record = &made->base[half];
	struct evk_glance *glance = evk_glance_of(number, half, record->cpus, facts);
	struct evk_glance *before = evk_glance_of(number, half ^ 1, record->cpus, facts);

	if (!glance || !before)
		return 0;
	if (before->cpu != cpu)
		made->changed = 1;
	glance->cpu = cpu;
	if (number) {
		struct task_group *group = (void *)target->group;

		evk_read(glance->base, BPF_CORE_READ(group, cfs_rq) + cpu);
		evk_read(glance->thread, BPF_CORE_READ(group, se) + cpu);
		evk_look_group(glance, glance);
	} else {
		glance->base = base;
		glance->thread = evk_thread(base, facts);
		evk_look(now, glance, glance);
	}
	record->cpus++;
	record->totals.busy_ns += glance->busy_ns;
	record->totals.running += glance->running;
	record->totals.backlog += glance->backlog;
	record->totals.softirq_threads += glance->threads;
	record->totals.pending |= glance->pending;
	return 1;
}

/* Puts the counters of a CPU into the record of the machine that the timer makes, instead of those
 * that are in it. */
__noinline int evk_tick_counters(u32 place)
{
	u32 zero = 0, cpu;
	struct evk_facts *facts = evk_the_facts();
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &zero);
	struct evk_cpu *one = bpf_map_lookup_elem(&evk_one, &zero), *counted;

	if (!facts || !made || !one)
		return 0;

	u32 half = evk_half(made->generation + 1);
	struct evk_cpu *sum = &made->base[half].totals;
	struct evk_glance *glance = evk_glance_of(0, half, place, facts);

	if (!glance)
		return 0;
	cpu = glance->cpu;
	counted = bpf_map_lookup_elem(&evk_counted, &cpu);
	if (!counted || !evk_fill_cpu(cpu, one))
		return 0;
	if (made->changed)
		__builtin_memset(counted, 0, sizeof(*counted));
	for (int i = 0; i < EVK_TIMES; i++)
		sum->times_ns[i] += one->times_ns[i] - counted->times_ns[i];
	for (int i = 0; i < EVK_SOFTIRQS; i++)
		sum->softirqs[i] += one->softirqs[i] - counted->softirqs[i];
	sum->switches += one->switches - counted->switches;
	sum->blocked += one->blocked - counted->blocked;
	sum->dropped += one->dropped - counted->dropped;
	sum->squeezed += one->squeezed - counted->squeezed;
	__builtin_memcpy(counted, one, sizeof(*counted));
	return 1;
}

/* Begins the next record of a target: with the counters of the last one, all else is 0. */
static __always_inline void evk_tick_begin(struct evk_made *made, u64 now)
{
	struct evk_base *record = &made->base[evk_half(made->generation + 1)];

	for (u32 i = 0; i < sizeof(*record) / 8; i++)
		((volatile u64 *)record)[i] = 0;
	record->totals.time_ns = now;
	made->changed = !made->generation;
}

/* How many CPUs were on at the last tick. */
static __always_inline u32 evk_tick_before(const struct evk_made *made)
{
	return made->base[evk_half(made->generation)].cpus;
}

/* Lets queries have the record. Its busy time of the last ticks counts if that is `exact`. */
static __always_inline void evk_tick_end(struct evk_made *made, u32 number, bool exact)
{
	u32 half = evk_half(made->generation + 1), fresh = made->fresh[half ^ 1] + EVK_FRESH;
	struct evk_base *record = &made->base[half];
	const struct evk_base *before = &made->base[half ^ 1];

	record->source = EVK_RESPONDER;
	record->target = number;
	if (exact && !made->changed)
		evk_fill_recent(record, before->epoch, before->time_ns, before->totals.busy_ns);
	made->fresh[half] = fresh < record->cpus ? fresh : 0;
	/* Everything above is there for whoever sees this. */
	__sync_fetch_and_add(&made->generation, 1);
}

static __always_inline void evk_tick_all(void)
{
	u32 zero = 0, from, cpus;
	struct evk_facts *facts = evk_the_facts();
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &zero);
	struct evk_target *machine = bpf_map_lookup_elem(&evk_targets, &zero);
	u64 now = bpf_ktime_get_ns();

	if (!facts || !made || !machine)
		return;
	evk_tick_begin(made, now);
	for (u32 cpu = 0; cpu < EVK_MAX_CPUS; cpu++) {
		if (cpu >= facts->possible)
			break;
		evk_tick_cpu(0, cpu, now);
	}

	u32 half = evk_half(made->generation + 1);
	struct evk_base *record = &made->base[half];
	const struct evk_cpu *before = &made->base[half ^ 1].totals;

	cpus = record->cpus;
	if (evk_tick_before(made) != cpus)
		made->changed = 1;
	if (made->changed) {
		from = 0;
	} else {
		from = made->fresh[half ^ 1];
		__builtin_memcpy(record->totals.times_ns, before->times_ns,
				 sizeof(before->times_ns));
		__builtin_memcpy(record->totals.softirqs, before->softirqs,
				 sizeof(before->softirqs));
		record->totals.switches = before->switches;
		record->totals.blocked = before->blocked;
		record->totals.dropped = before->dropped;
		record->totals.squeezed = before->squeezed;
		if (cpus > from + EVK_FRESH)
			cpus = from + EVK_FRESH;
	}
	for (u32 i = 0; i < EVK_MAX_CPUS; i++) {
		if (from + i >= cpus)
			break;
		evk_tick_counters(from + i);
	}
	evk_tick_machine(record->totals.running);
	evk_fill_machine(record, facts, machine);
	evk_tick_end(made, 0, evk_is_exact(facts));
}

static __always_inline void evk_tick_group(u32 number)
{
	u32 zero = 0, possible;
	struct evk_facts *facts = evk_the_facts();
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &number);
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);
	struct evk_target *machine = bpf_map_lookup_elem(&evk_targets, &zero);
	u64 now = bpf_ktime_get_ns();

	if (!facts || !made || !target || !machine || target->scope != EVK_CGROUP ||
	    !evk_alive(target))
		return;
	evk_tick_begin(made, now);
	possible = facts->possible;
	for (u32 cpu = 0; cpu < EVK_MAX_CPUS; cpu++) {
		if (cpu >= possible)
			break;
		evk_tick_cpu(number, cpu, now);
	}

	struct evk_base *record = &made->base[evk_half(made->generation + 1)];

	target->capacity = evk_quota(number);
	evk_tick_target(target, record->totals.running);
	if (target->memory) {
		u64 used = EVK_GET(struct mem_cgroup, target->memory, memory.usage.counter) *
			   facts->page_size;
		u64 most = EVK_GET(struct mem_cgroup, target->memory, memory.max);

		/* No limit is more than any machine has. */
		if (most > machine->memory_total / facts->page_size)
			most = machine->memory_total;
		else
			most *= facts->page_size;
		target->memory_total = most;
		target->memory_available = most > used ? most - used : 0;
	}
	record->magic = EVK_RECORD_MAGIC;
	record->version = EVK_VERSION;
	record->scope = EVK_CGROUP;
	record->time_ns = now;
	record->epoch = facts->epoch + record->cpus + target->id;
	record->capacity = target->capacity;
	if (!record->capacity || record->capacity > record->cpus * 1000)
		record->capacity = record->cpus * 1000;
	record->available = EVK_HAS_RUNNING | EVK_HAS_BUSY | EVK_HAS_RUNNING_AVERAGE;
	record->running_average = target->running_average >> 16;
	if (target->memory && target->memory_total) {
		record->available |= EVK_HAS_MEMORY;
		record->memory_total = target->memory_total;
		record->memory_available = target->memory_available;
	}
	evk_tick_end(made, number, true);
}

/* When a target is made again: later if there are very many CPUs and targets. */
static __always_inline u64 evk_pause(u32 number)
{
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &number);

	if (!made)
		return EVK_TICK_NS;
	return EVK_TICK_NS * (1 + evk_tick_before(made) * (1 + evk_told.cgroups) / EVK_LOOKS);
}

/* Looks at a place again, and puts that into the record in the scratch instead of what the timer
 * saw there. */
__noinline int evk_freshen(u32 number, u32 half, u32 place, u64 now)
{
	struct evk_facts *facts = evk_the_facts();
	struct evk_scratch *scratch = evk_the_scratch();
	struct evk_glance *seen, *fresh;
	struct evk_cpu *totals;

	if (!facts || !scratch)
		return 0;
	seen = evk_glance_of(number, half & 1, place, facts);
	if (!seen)
		return 0;
	fresh = &scratch->fresh;
	totals = &scratch->base.totals;
	if (number)
		evk_look_group(seen, fresh);
	else
		evk_look(now, seen, fresh);
	totals->busy_ns += fresh->busy_ns - seen->busy_ns;
	totals->running += fresh->running - seen->running;
	totals->backlog += fresh->backlog - seen->backlog;
	totals->softirq_threads += fresh->threads - seen->threads;
	totals->pending |= fresh->pending;
	return 1;
}

/* Makes the entry of a place in the scratch, all of it of this moment. */
__noinline int evk_make_entry(u32 number, u32 half, u32 place, u32 at)
{
	struct evk_facts *facts = evk_the_facts();
	struct evk_scratch *scratch = evk_the_scratch();
	struct evk_glance *seen, *fresh;
	struct evk_cpu *entry;

	if (!facts || !scratch)
		return 0;
	seen = evk_glance_of(number, half & 1, place, facts);
	if (!seen)
		return 0;
	/* It is less; the verifier of Linux 6.1 has lost sight of that. */
	entry = &scratch->cpu[at & (EVK_ENTRIES - 1)];
	if (!number)
		return evk_fill_cpu(seen->cpu, entry);
	fresh = &scratch->fresh;
	evk_look_group(seen, fresh);
	entry->time_ns = bpf_ktime_get_ns();
	entry->number = seen->cpu;
	entry->running = fresh->running;
	entry->busy_ns = fresh->busy_ns;
	return 1;
}

/* Makes the sums of the record in the scratch those of its entries. */
__noinline int evk_add_entries(u64 time)
{
	struct evk_scratch *scratch = evk_the_scratch();

	if (!scratch)
		return 0;
	__builtin_memset(&scratch->base.totals, 0, sizeof(scratch->base.totals));
	for (u32 i = 0; i < EVK_ENTRIES; i++) {
		if (i < scratch->base.entries)
			evk_add(&scratch->base.totals, &scratch->cpu[i]);
	}
	scratch->base.totals.time_ns = time;
	return 1;
}

/* Makes the entries of `wanted` places from `first` on in the scratch, where the base is. If these
 * are all CPUs, the sums are theirs. */
__noinline int evk_make_entries(u32 number, u32 half, u32 first, u32 wanted)
{
	struct evk_scratch *scratch = evk_the_scratch();
	u32 made = 0;

	if (!scratch)
		return 0;
	for (u32 i = 0; i < sizeof(scratch->cpu) / 8; i++)
		((volatile u64 *)scratch->cpu)[i] = 0;
	for (u32 i = 0; i < EVK_ENTRIES; i++) {
		if (i >= wanted || first + i >= scratch->base.cpus ||
		    !evk_make_entry(number, half, first + i, i))
			break;
		made = i + 1;
	}
	scratch->base.first_cpu = first < scratch->base.cpus ? first : scratch->base.cpus;
	scratch->base.entries = made;
	if (made == scratch->base.cpus)
		evk_add_entries(scratch->base.time_ns);
	return 1;
}

/* Makes the record of a target in the scratch. Returns 0 if the target is no more, or was not made
 * yet; else 1 and the half that it was made from. */
__noinline int evk_make(u32 number, u64 now)
{
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &number);
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);
	struct evk_scratch *scratch = evk_the_scratch();
	u32 half, cpus, fresh, from;
	u64 generation, time = now, busy;

	if (!made || !target || !scratch || !target->scope)
		return 0;
	if (number && !evk_alive(target))
		return 0;
	generation = *(volatile u64 *)&made->generation;
	if (!generation)
		return 0;
	half = evk_half(generation);

	struct evk_base *base = &scratch->base;

	__builtin_memcpy(base, &made->base[half], sizeof(*base));
	busy = base->totals.busy_ns;
	fresh = cpus = base->cpus;
	if (!cpus)
		return 0;
	from = made->fresh[half];
	if (cpus <= EVK_FRESH) {
		base->totals.pending = 0;
	} else {
		fresh = EVK_FRESH;
		if (from + fresh > cpus)
			from = cpus - fresh;
		/* The timer may have made it since `now`. */
		if (now > base->time_ns)
			time -= (now - base->time_ns) * (cpus - fresh) / cpus;
	}
	for (u32 i = 0; i < EVK_FRESH; i++) {
		if (i >= fresh)
			break;
		evk_freshen(number, half, from + i, now);
	}
	/* The record holds the busy time from the tick before to the last tick, and what is new
	 * was added to the sums: together 10 to 20 ms. */
	if (base->available & EVK_HAS_RECENT) {
		busy = base->totals.busy_ns - busy;
		base->recent_busy_ns += (s64)busy > 0 ? busy : 0;
		base->recent_ns += time > base->time_ns ? time - base->time_ns : 0;
	}
	base->time_ns = base->totals.time_ns = time;
	return 1 + half;
}

/* Adds up the backlogs of the sockets that share a port (SO_REUSEPORT): each has its own. */
__noinline int evk_backlogs(u64 group, u32 at)
{
	struct evk_scratch *scratch = evk_the_scratch();
	struct sock_reuseport *shared = (void *)group;
	u32 count;

	if (!scratch || at >= EVK_PORTS)
		return 0;

	struct evk_port *port = &scratch->port[at];

	port->backlog = port->limit = 0;
	count = BPF_CORE_READ(shared, num_socks);
	for (u32 i = 0; i < 256; i++) {
		struct sock *sock = 0;

		if (i >= count)
			break;
		evk_read(sock, group + bpf_core_field_offset(struct sock_reuseport, socks) +
				       i * sizeof(sock));
		port->backlog += BPF_CORE_READ(sock, sk_ack_backlog);
		port->limit += BPF_CORE_READ(sock, sk_max_ack_backlog);
	}
	return 1;
}

/* Looks for what listens at the configured ports of the address that was asked. */
static __always_inline void evk_make_ports(void *ctx, struct evk_scratch *scratch,
					   const struct evk_config *config, bool six)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = six ? sizeof(tuple.ipv6) : sizeof(tuple.ipv4);

	if (six) {
		__builtin_memcpy(tuple.ipv6.saddr, scratch->source.address, 16);
		__builtin_memcpy(tuple.ipv6.daddr, scratch->destination.address, 16);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, scratch->source.address + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, scratch->destination.address + 12, 4);
	}
	scratch->base.available |= EVK_HAS_PORTS;
	for (u32 i = 0; i < EVK_PORTS; i++) {
		struct evk_port *port = &scratch->port[i];
		struct bpf_sock *found;
		struct sock *sock;
		u64 shared = 0;

		if (i >= config->ports)
			break;
		port->port = config->listen[i];
		if (six)
			tuple.ipv6.dport = bpf_htons(port->port);
		else
			tuple.ipv4.dport = bpf_htons(port->port);
		found = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
		if (!found)
			continue;
		sock = (void *)bpf_skc_to_tcp_sock(found);
		if (sock && sock->__sk_common.skc_state == TCP_LISTEN) {
			port->listening = 1;
			port->backlog = sock->sk_ack_backlog;
			port->limit = sock->sk_max_ack_backlog;
			bpf_probe_read_kernel(&shared, sizeof(shared), &sock->sk_reuseport_cb);
		}
		bpf_sk_release(found);
		if (shared)
			evk_backlogs(shared, i);
	}
}

/* Whether a source asks too often: the generic cell rate algorithm, a token bucket that needs
 * one number, `due`, when its next query would be due. */
static __always_inline bool evk_too_many(u64 *due, const struct evk_config *config, u64 now)
{
	u64 at = *due;

	if (!config->interval_ns)
		return false;
	if (at > now + config->burst_ns)
		return true;
	*due = (at > now ? at : now) + config->interval_ns;
	return false;
}

/* Whether a query is none that its reader has sent before. Of two CPUs with the same query one
 * wins. */
static __always_inline bool evk_is_new(u64 reader, u64 number)
{
	u64 *last = bpf_map_lookup_elem(&evk_readers, &reader);

	if (!last)
		return !bpf_map_update_elem(&evk_readers, &reader, &number, BPF_NOEXIST);
	for (int i = 0; i < 4; i++) {
		u64 before = *(volatile u64 *)last;

		if (number <= before)
			return false;
		if (__sync_val_compare_and_swap(last, before, number) == before)
			return true;
	}
	return false;
}

enum evk_verdict { EVK_PASS, EVK_DROP, EVK_SEND };

/* Finds the UDP payload of a packet to our port. Fills what the scratch has about it. */
static __always_inline bool evk_parse(void *data, void *end, const struct evk_config *config,
				      struct evk_scratch *scratch, bool *six)
{
	struct ethernet *ethernet = data;
	u32 at = sizeof(*ethernet), payload;
	struct udp *udp;
	u16 type;

	if (data + sizeof(*ethernet) > end || ethernet->to[0] & 1)
		return false;
	type = ethernet->type;
	for (int i = 0; i < 2; i++) {
		struct vlan *vlan = data + at;

		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(vlan + 1) > end)
			return false;
		type = vlan->type;
		at += sizeof(*vlan);
	}
	scratch->ip = at;
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + at;

		if ((void *)(ip + 1) > end || ip->version_length != 0x45 || ip->protocol != UDP)
			return false;
		/* A first, later or last fragment. */
		if (ip->fragment & bpf_htons(0x3fff))
			return false;
		payload = bpf_ntohs(ip->length) - sizeof(*ip);
		at += sizeof(*ip);
		__builtin_memset(&scratch->source, 0, 12);
		__builtin_memset(&scratch->destination, 0, 12);
		__builtin_memcpy(scratch->source.address + 12, &ip->from, 4);
		__builtin_memcpy(scratch->destination.address + 12, &ip->to, 4);
		*six = false;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = data + at;

		if ((void *)(ip + 1) > end || ip->next != UDP)
			return false;
		payload = bpf_ntohs(ip->length);
		at += sizeof(*ip);
		__builtin_memcpy(scratch->source.address, ip->from, 16);
		__builtin_memcpy(scratch->destination.address, ip->to, 16);
		*six = true;
	} else {
		return false;
	}
	udp = data + at;
	if ((void *)(udp + 1) > end || udp->to != config->port || !udp->from)
		return false;
	/* Not what IP says, or not all there: the stack knows what to do with such. */
	if (bpf_ntohs(udp->length) != payload || payload < sizeof(*udp))
		return false;
	if ((void *)udp + payload > end)
		return false;
	scratch->udp = at;
	scratch->payload = payload - sizeof(*udp);
	return true;
}

static __always_inline bool evk_allowed(const struct evk_scratch *scratch, bool six)
{
	if (six) {
		struct evk_prefix6 prefix = { .length = 128 };

		__builtin_memcpy(prefix.address, scratch->source.address, 16);
		return bpf_map_lookup_elem(&evk_allow6, &prefix);
	}
	struct evk_prefix4 prefix = { .length = 32 };

	__builtin_memcpy(prefix.address, scratch->source.address + 12, 4);
	return bpf_map_lookup_elem(&evk_allow4, &prefix);
}

static __always_inline int evk_refuse(u32 counter)
{
	evk_count(counter);
	return counter == EVK_SOURCE || counter == EVK_OTHER ? EVK_PASS : EVK_DROP;
}

static __always_inline u64 evk_updates(struct evk_config *config)
{
	return __sync_fetch_and_add(&config->updates, 1) + 1;
}

#define SWAP(a, b)                    \
	do {                          \
		typeof(a) was = (a);  \
		(a) = (b);            \
		(b) = was;            \
	} while (0)

/* Turns the packet round. `sum` is that of its payload. */
static __always_inline int evk_send(void *data, void *end, u32 ip_at, u32 at, u64 sum, bool skb,
				    bool six)
{
	struct ethernet *ethernet = data;
	struct udp *udp = data + at;
	u64 pseudo;
	u8 mac[6];

	if ((void *)(ethernet + 1) > end || (void *)(udp + 1) > end)
		return EVK_DROP;
	__builtin_memcpy(mac, ethernet->to, 6);
	__builtin_memcpy(ethernet->to, ethernet->from, 6);
	__builtin_memcpy(ethernet->from, mac, 6);
	pseudo = bpf_htons(UDP) + (u64)udp->length;
	if (six) {
		struct ipv6 *ip = data + ip_at;

		if ((void *)(ip + 1) > end)
			return EVK_DROP;
		for (int i = 0; i < 4; i++) {
			pseudo += (u64)ip->from[i] + ip->to[i];
			SWAP(ip->from[i], ip->to[i]);
		}
		ip->hop_limit = 64;
	} else {
		struct ipv4 *ip = data + ip_at;
		u64 header;

		if ((void *)(ip + 1) > end)
			return EVK_DROP;
		pseudo += (u64)ip->from + ip->to;
		SWAP(ip->from, ip->to);
		ip->ttl = 64;
		ip->check = 0;
		header = (u64)*(u16 *)ip + ip->length + ip->id + ip->fragment +
			 *(u16 *)&ip->ttl + ip->from + ip->to;
		ip->check = ~evk_fold(header);
	}
	SWAP(udp->from, udp->to);
	/* What was sent on this machine has the sum of the pseudo header only, and says in its
	 * sk_buff, which is out of sight, that the rest will be added on the way. The pseudo
	 * header of the answer has the same sum. */
	if (skb && udp->check == evk_fold(pseudo))
		return EVK_SEND;
	sum += pseudo + udp->from + udp->to + udp->length;
	udp->check = ~evk_fold(sum);
	if (!udp->check)
		udp->check = 0xffff;
	return EVK_SEND;
}

/* What becomes of a packet whose every byte lies between `data` and `end`. */
static __always_inline int evk_respond(void *ctx, void *data, void *end)
{
	u32 zero = 0, number;
	struct evk_config *config = bpf_map_lookup_elem(&evk_config, &zero);
	struct evk_scratch *scratch = evk_the_scratch();
	struct evk_known *known, *first;
	struct evk_envelope *query;
	struct evk_sip sip;
	u32 ip_at, at, length, words, half, entries = 0;
	bool six = false;
	u64 head[5], mac, sum, host, now;

	if (!config || !scratch || !evk_parse(data, end, config, scratch, &six))
		return EVK_PASS;
	known = bpf_map_lookup_elem(&evk_known, &scratch->source);
	if (!known && !evk_allowed(scratch, six))
		return evk_refuse(EVK_SOURCE);
	/* Read back, so that the verifier forgets by how many ways it came here. The masks are
	 * for that of Linux 6.1, to which a comparison says nothing of a copy on the stack. */
	ip_at = *(volatile u32 *)&scratch->ip & 31;
	at = *(volatile u32 *)&scratch->udp & 63;
	length = *(volatile u32 *)&scratch->payload & 0xffff;
	if (ip_at > 14 + 8 || at > 14 + 8 + 40)
		return EVK_PASS;
	query = data + at + sizeof(struct udp);
	if ((void *)&query->magic + sizeof(query->magic) > end || length < sizeof(query->magic) ||
	    query->magic != EVK_QUERY_MAGIC)
		return evk_refuse(EVK_OTHER);
	if (length < EVK_ENVELOPE || (void *)(query + 1) > end)
		return evk_refuse(EVK_BAD_LENGTH);
	if (query->version != EVK_QUERY_VERSION)
		return evk_refuse(EVK_BAD_VERSION);
	if (length != query->length)
		return evk_refuse(EVK_BAD_LENGTH);
	if (length >= EVK_WITH_PORTS && length <= EVK_LONGEST) {
		if ((length - EVK_WITH_PORTS) % sizeof(struct evk_cpu))
			return evk_refuse(EVK_BAD_LENGTH);
		entries = (length - EVK_WITH_PORTS) / sizeof(struct evk_cpu);
	} else if (length != EVK_SHORT) {
		return evk_refuse(EVK_BAD_LENGTH);
	}
	if (query->kind != EVK_QUERY || query->reserved)
		return evk_refuse(EVK_BAD_FIELD);
	number = query->key;
	first = &scratch->known;
	if (known && known->key == number) {
		first->secret = known->secret;
	} else {
		struct evk_secret *key = bpf_map_lookup_elem(&evk_keys, &number);

		if (!key)
			return evk_refuse(EVK_BAD_KEY);
		first->secret = *key;
	}
	__builtin_memcpy(head, query, sizeof(head));
	evk_sip_begin(&sip, &first->secret);
	for (int i = 0; i < 5; i++)
		evk_sip_word(&sip, head[i]);
	if (evk_sip_end(&sip, sizeof(head)) != query->mac)
		return evk_refuse(EVK_BAD_MAC);
	/* 0 is any host. */
	host = query->host;
	if (host && !(known && known->host == host) && !bpf_map_lookup_elem(&evk_hosts, &host))
		return evk_refuse(EVK_OTHER_HOST);
	if (!evk_is_new(query->reader, query->number))
		return evk_refuse(EVK_REPLAYED);
	/* The moment of the answer, too: a clock is not free. */
	now = bpf_ktime_get_ns();
	if (known) {
		/* Another CPU may do the same: one query more. */
		if (evk_too_many(&known->due_ns, config, now))
			return evk_refuse(EVK_TOO_MANY);
	} else {
		first->due_ns = 0;
		first->host = host;
		first->key = number;
		evk_too_many(&first->due_ns, config, now);
		bpf_map_update_elem(&evk_known, &scratch->source, first, BPF_NOEXIST);
	}
	number = query->target;

	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);

	if (!target || !target->scope)
		return evk_refuse(EVK_NO_TARGET);
	half = evk_make(number, now);
	if (!half)
		return evk_refuse(EVK_GONE);
	if (entries)
		evk_make_entries(number, half - 1, query->first_cpu, entries);
	/* A short answer says, too, whether there are ports: who reads it need not ask for them
	 * where there are none. */
	if (!number)
		scratch->base.ports = config->ports;
	scratch->base.updates = evk_updates(config);
	scratch->base.begin = scratch->base.end = 2 * scratch->base.updates;
	if (length >= EVK_WITH_PORTS) {
		for (u32 i = 0; i < sizeof(scratch->port) / 8; i++)
			((volatile u64 *)scratch->port)[i] = 0;
		if (!number && config->ports)
			evk_make_ports(ctx, scratch, config, six);
	}

	/* The record goes into the packet, and on the way into the authentication code and the
	 * checksum. */
	u64 *out = (void *)(query + 1), *record = (void *)scratch;

	query->kind = EVK_REPLY;
	__builtin_memcpy(head, query, sizeof(head));
	evk_sip_begin(&sip, &first->secret);
	sum = 0;
	for (int i = 0; i < 5; i++) {
		evk_sip_word(&sip, head[i]);
		sum = evk_sum64(sum, head[i]);
	}
	words = (length - EVK_ENVELOPE) / 8;
	for (u32 i = 0; i < (EVK_LONGEST - EVK_ENVELOPE) / 8; i++) {
		if (i >= words || (void *)(out + i + 1) > end)
			break;
		out[i] = record[i];
		evk_sip_word(&sip, record[i]);
		sum = evk_sum64(sum, record[i]);
	}
	mac = evk_sip_end(&sip, length - 8);
	query->mac = mac;
	sum = evk_sum64(sum, mac);
	return evk_send(data, end, ip_at, at, sum, config->skb, six);
}

SEC("xdp")
int evk_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	switch (evk_respond(ctx, data, end)) {
	case EVK_SEND:
		evk_count(EVK_ANSWERED);
		return XDP_TX;
	case EVK_DROP:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

/* Whether it is worth having all of a packet in one piece. */
static __always_inline bool evk_maybe(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct evk_config *config = bpf_map_lookup_elem(&evk_config, &zero);
	u16 type = skb->protocol, to;
	u32 at = sizeof(struct ethernet);
	u8 protocol;

	if (!config || skb->len > sizeof(struct ethernet) + 8 + 40 + 8 + EVK_LONGEST)
		return false;
	/* One tag may still be in the packet, another one beside it. */
	if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD))
		return true;
	if (type == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv4, protocol), &protocol, 1))
			return false;
		at += sizeof(struct ipv4);
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6, next), &protocol, 1))
			return false;
		at += sizeof(struct ipv6);
	} else {
		return false;
	}
	return protocol == UDP &&
	       !bpf_skb_load_bytes(skb, at + offsetof(struct udp, to), &to, sizeof(to)) &&
	       to == config->port;
}

SEC("tc")
int evk_tc(struct __sk_buff *skb)
{
	void *data, *end;

	if (!evk_maybe(skb) || bpf_skb_pull_data(skb, skb->len))
		return TC_ACT_UNSPEC;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	switch (evk_respond(skb, data, end)) {
	case EVK_SEND:
		evk_count(EVK_ANSWERED);
		return bpf_redirect(skb->ifindex, 0);
	case EVK_DROP:
		return TC_ACT_SHOT;
	default:
		return TC_ACT_UNSPEC;
	}
}

static __always_inline bool evk_has_target(u32 number)
{
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);

	return target && (target->scope == EVK_MACHINE ||
			  (target->scope == EVK_CGROUP && evk_alive(target)));
}

static int evk_tock(void *map, u32 *number, struct evk_timer *timer)
{
	u32 target = *number;

	if (target)
		evk_tick_group(target);
	else
		evk_tick_all();
	/* A cgroup that is gone never comes back. */
	if (evk_has_target(target))
		bpf_timer_start(&timer->timer, evk_pause(target), 0);
	return 0;
}

/* What the loader asks for. */
struct evk_request {
	u32 target;
	u32 file; /* descriptor of a cgroup's folder */
};

/* Starts the timer of a target; again, if a new version of this program takes over. */
SEC("syscall")
int evk_start(struct evk_request *request)
{
	u32 number = request->target;
	struct evk_timer *timer = bpf_map_lookup_elem(&evk_timers, &number);
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);

	if (!timer || !target)
		return EVK_NO_FACTS;
	if (!number)
		target->scope = EVK_MACHINE;
	/* CLOCK_MONOTONIC. It is there already if this is not the first time. */
	bpf_timer_init(&timer->timer, &evk_timers, 1);
	if (bpf_timer_set_callback(&timer->timer, evk_tock))
		return EVK_NO_FACTS;
	return bpf_timer_start(&timer->timer, 0, 0);
}

/* Takes a target away. */
SEC("syscall")
int evk_stop(struct evk_request *request)
{
	u32 number = request->target;
	struct evk_timer *timer = bpf_map_lookup_elem(&evk_timers, &number);
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);

	if (!timer || !target)
		return EVK_NO_FACTS;
	target->scope = 0;
	bpf_timer_cancel(&timer->timer);
	return EVK_FOUND;
}

/* Makes the cgroup, whose folder the loader has open, a target: from the open file to the node
 * of the file system, the cgroup, and its CPU and memory controllers. */
SEC("syscall")
int evk_group(struct evk_request *request)
{
	u32 number = request->target, file = request->file;
	struct evk_target *target = bpf_map_lookup_elem(&evk_targets, &number);
	struct evk_timer *timer = bpf_map_lookup_elem(&evk_timers, &number);
	struct evk_made *made = bpf_map_lookup_elem(&evk_made, &number);
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *open = 0;
	struct kernfs_node *node;
	struct cgroup *cgroup;
	struct cgroup_subsys_state *cpu = 0, *memory = 0;
	u64 subsys;

	if (!target || !timer || !made || !number)
		return EVK_NO_FACTS;
	if (file >= BPF_CORE_READ(table, max_fds) || evk_read(open, BPF_CORE_READ(table, fd) + file))
		return EVK_NO_CGROUP;
	node = BPF_CORE_READ(open, f_inode, i_private);
	cgroup = BPF_CORE_READ(node, priv);
	/* It points back if it is one. */
	if (!cgroup || BPF_CORE_READ(cgroup, kn) != node)
		return EVK_NO_CGROUP;
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return EVK_NO_CPU_GROUP;
	subsys = (u64)cgroup + bpf_core_field_offset(struct cgroup, subsys);
	evk_read(cpu, subsys + bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id) * sizeof(cpu));
	if (!cpu || BPF_CORE_READ(cpu, cgroup) != cgroup)
		return EVK_NO_CPU_GROUP;
	if (bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		evk_read(memory, subsys + bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id) *
						  sizeof(memory));
	if (memory && BPF_CORE_READ(memory, cgroup) != cgroup)
		memory = 0;
	/* The root of all has no entities of its own, and is the machine. */
	if (!BPF_CORE_READ((struct task_group *)cpu, parent))
		return EVK_NO_CPU_GROUP;
	/* Nothing of the cgroup that was here before may be told of this one. */
	bpf_timer_cancel(&timer->timer);
	made->generation = 0;
	target->group = (u64)cpu - bpf_core_field_offset(struct task_group, css);
	target->id = BPF_CORE_READ(node, id);
	target->memory = memory ? (u64)memory - bpf_core_field_offset(struct mem_cgroup, css) : 0;
	target->ticked_ns = 0;
	target->memory_total = 0;
	target->capacity = evk_quota(number);
	target->scope = EVK_CGROUP;
	return EVK_FOUND;
}
