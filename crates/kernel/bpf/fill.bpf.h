/* Reads a machine's load out of its kernel, for every program that writes a load record.
 *
 * How data is found. Addresses of the kernel's variables are not to be had everywhere (a
 * kernel without KALLSYMS_ALL gives none, typed or not), but those of a task are: evk_discover
 * goes from the current task to its task group's run queue of each CPU, and from there to the
 * CPU's run queue, which is a per-CPU variable. Its address less its offset among the per-CPU
 * variables, which BTF tells, is the base of the CPU; base plus offset is any other one. The
 * number of the CPU, read that way, must be the number of the CPU, or nothing is used.
 * Memory nodes are found by their kswapd threads, whose argument is the node.
 *
 * What is read, by evk_fill_cpu for one CPU:
 *  - runqueues: nr_running, nr_switches, nr_iowait;
 *  - kernel_cpustat: CPU time by kind, counted at ticks;
 *  - tick_cpu_sched: the time for which the CPU was idle, with the idle time that still goes
 *    on; the rest is busy time, exact to the moment, ticks or not;
 *  - kstat: soft interrupts by kind; __softirq_pending: those raised;
 *  - softnet_data: packets in the queues of the CPU, dropped, put off ("squeezed");
 *  - ksoftirqd: whether the thread for left-over soft interrupts is runnable.
 * evk_look reads of these what a load is made of, and nothing else: nr_running, busy time,
 * packets that wait, the thread, and what is raised.
 *
 * How data is read. A call of bpf_probe_read_kernel takes some 20 ns, and a load 1; but for loads
 * the verifier must know what lies at an address. Linux 6.2 and newer have bpf_rdonly_cast, by
 * which a program says so; the loader sets evk_told where it is there, and the verifier
 * removes the half of EVK_GET that is not used. Wrong addresses give 0 either way.
 *
 * What needs an average is kept by evk_tick_machine, which a timer calls every 10 ms:
 *  - the running average, 100 ms, exponential;
 *  - time under pressure (PSI): the kernel sums it up every 2 s only, so the times of the CPUs
 *    (system_group_pcpu) are summed up here, with the kernel's weights (a CPU counts as much
 *    as it was not idle), and its 10 s average with them;
 *  - memory: free pages less the kernel's reserve, plus the file cache and what of the
 *    kernel's own caches can be reclaimed, both less half: what /proc/meminfo calls available,
 *    up to the watermarks.
 * Load averages and swap need KALLSYMS_ALL, and are unavailable or 0 without.
 */
#ifndef EVENKEEL_FILL_H
#define EVENKEEL_FILL_H

#include "kernel.h"
#include "record.h"

#define EVK_NOWHERE 0xffffffffu
#define EVK_NODES 16
#define EVK_TARGETS 64
#define EVK_TICK_NS 10000000ull
#define EVK_AVERAGE_NS 100000000ull
#define EVK_TEN_SECONDS_NS 10000000000ull
#define EVK_TS_IDLE_ACTIVE 4 /* TS_FLAG_IDLE_ACTIVE, a macro in the kernel */
#define EVK_CSS_ONLINE 2     /* CSS_ONLINE is 1 << 1 since it exists */
#define EVK_PF_KTHREAD 0x00200000

/* What evk_discover returns. */
enum evk_found {
	EVK_FOUND = 0,
	EVK_NO_FACTS = 1,    /* the loader has not written them */
	EVK_NO_GROUP = 2,    /* no task group: a kernel without CONFIG_FAIR_GROUP_SCHED */
	EVK_WRONG_CPU = 3,   /* what was found is not what it should be */
	EVK_NO_CGROUP = 4,   /* the file is no cgroup's folder */
	EVK_NO_CPU_GROUP = 5 /* the cgroup has no CPU controller */
};

/* Written by the loader before discovery, but for what stands at the end. Offsets are those
 * among the per-CPU variables, EVK_NOWHERE for what the kernel has not. */
struct evk_facts {
	u64 epoch;
	u32 possible; /* CPU numbers are below this */
	u32 page_size;
	u32 runqueues;
	u32 cpu_number;
	u32 kernel_cpustat;
	u32 kstat;
	u32 softnet_data;
	u32 tick_cpu_sched;
	u32 ksoftirqd;
	u32 softirq_pending;
	u32 psi;
	u32 nodes; /* found: number of memory nodes */
	u64 node[EVK_NODES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_facts);
} evk_facts SEC(".maps");

/* The base of each CPU's variables. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_MAX_CPUS);
	__type(key, u32);
	__type(value, u64);
} evk_bases SEC(".maps");

/* Whose load can be asked for. Number 0 is the machine. */
struct evk_target {
	u32 scope;    /* 0: none */
	u32 capacity; /* of a cgroup: its quota or CPUs, in thousandths of a CPU */
	u64 group;    /* of a cgroup: its task group */
	u64 id;       /* and its number in the file system */
	u64 memory;   /* and its mem_cgroup, or 0 */
	/* Kept by the timer. */
	u64 ticked_ns;
	u64 running_average; /* times 2048 * 65536 */
	u64 pressure_ns[5];
	u64 pressure_avg10[5]; /* per cent times 2048 * 65536 */
	u64 pressure_known;
	u64 memory_total;
	u64 memory_available;
	u64 swap_used;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_TARGETS);
	__type(key, u32);
	__type(value, struct evk_target);
} evk_targets SEC(".maps");

/* What the CPUs' times under pressure were at the last tick. */
struct evk_stalled {
	u32 times[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_MAX_CPUS);
	__type(key, u32);
	__type(value, struct evk_stalled);
} evk_stalled SEC(".maps");

/* Room for sums that do not fit on the stack. A tick is never interrupted by another. */
struct evk_work {
	u64 weighted[5];
	u64 weight;
	u64 task;
	u64 queues;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_work);
} evk_work SEC(".maps");

extern const void avenrun __ksym __weak;
extern const void nr_swap_pages __ksym __weak;
extern const void total_swap_pages __ksym __weak;

static __always_inline struct evk_facts *evk_the_facts(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&evk_facts, &zero);
}

static __always_inline u64 evk_base_of(u32 cpu)
{
	u64 *base = bpf_map_lookup_elem(&evk_bases, &cpu);

	return base ? *base : 0;
}

#define evk_read(to, from) bpf_probe_read_kernel(&(to), sizeof(to), (const void *)(from))

/* Written by the loader before the programs are loaded. */
struct evk_told {
	u32 direct;  /* whether this kernel has bpf_rdonly_cast */
	u32 cgroups; /* how many targets are cgroups */
};

const volatile struct evk_told evk_told = {};
extern void *bpf_rdonly_cast(const void *obj__ign, u32 btf_id__k) __ksym __weak;

#define evk_cast(type, address) \
	((type *)bpf_rdonly_cast((const void *)(address), bpf_core_type_id_kernel(type)))

/* A member of what lies at an address of the kernel. */
#define EVK_GET(type, address, member)                                            \
	({                                                                        \
		u64 evk_at = (u64)(address);                                      \
		evk_told.direct ? evk_cast(type, evk_at)->member                       \
				: BPF_CORE_READ((type *)evk_at, member);          \
	})

/* The word at an address of the kernel. */
static __always_inline u64 evk_word(u64 address)
{
	u64 value = 0;

	/* To the verifier any structure that begins with a number is as good. */
	if (evk_told.direct)
		return evk_cast(struct kernel_cpustat, address)->cpustat[0];
	evk_read(value, address);
	return value;
}

static __always_inline bool evk_online(u64 base, const struct evk_facts *facts)
{
	struct rq *rq = 0;

	return !bpf_core_field_exists(rq->online) ||
	       EVK_GET(struct rq, base + facts->runqueues, online);
}

/* Whether the CPU is idle. These are functions of their own, or the compiler looks for fields
 * that a kernel has not before it is known that it must not. Old kernels look at them even if
 * they are not called. */
__noinline int evk_idle_bit(u64 sched) /* until 6.8 */
{
	struct tick_sched *ts = (void *)sched;

	if (!bpf_core_field_exists(ts->idle_active))
		return 0;
	return BPF_CORE_READ_BITFIELD_PROBED(ts, idle_active);
}

__noinline int evk_idle_flag(u64 sched)
{
	struct tick_sched___flags *ts = 0;

	if (!bpf_core_field_exists(ts->flags))
		return 0;
	return (EVK_GET(struct tick_sched___flags, sched, flags) & EVK_TS_IDLE_ACTIVE) != 0;
}

/* The number of the last change of its times, odd while they are changed. */
__noinline int evk_idle_sequence(u64 sched)
{
	struct tick_sched___seq *ts = 0;

	if (!bpf_core_field_exists(ts->idle_sleeptime_seq))
		return 0;
	return EVK_GET(struct tick_sched___seq, sched, idle_sleeptime_seq.sequence);
}

/* Whether this kernel measures by its clock for how long CPUs are idle. */
static __always_inline bool evk_is_exact(const struct evk_facts *facts)
{
	struct tick_sched *ts = 0;

	return facts->tick_cpu_sched != EVK_NOWHERE && bpf_core_field_exists(ts->idle_sleeptime);
}

/* Time for which the CPU was busy until `now`, in ns, which must be a moment ago. The CPU may go
 * to sleep, or wake up, while its numbers are read; then they are read again. Kernels before 6.2
 * do not tell that they are being changed, so there two readings must agree. */
static __always_inline bool evk_busy(u64 base, const struct evk_facts *facts, u64 now, u64 *busy)
{
	struct tick_sched___seq *counted = 0;
	struct tick_sched___flags *flagged = 0;
	u64 sched = base + facts->tick_cpu_sched, entry, idle;
	unsigned int before, after;
	bool active;

	if (!evk_is_exact(facts))
		return false;
	for (int i = 0; i < 4; i++) {
		before = after = 0;
		if (bpf_core_field_exists(counted->idle_sleeptime_seq))
			before = evk_idle_sequence(sched);
		entry = EVK_GET(struct tick_sched, sched, idle_entrytime);
		idle = EVK_GET(struct tick_sched, sched, idle_sleeptime) +
		       EVK_GET(struct tick_sched, sched, iowait_sleeptime);
		if (bpf_core_field_exists(flagged->flags))
			active = evk_idle_flag(sched);
		else
			active = evk_idle_bit(sched);
		if (bpf_core_field_exists(counted->idle_sleeptime_seq)) {
			after = evk_idle_sequence(sched);
			if (before == after && !(before & 1))
				break;
		} else if (entry == EVK_GET(struct tick_sched, sched, idle_entrytime)) {
			break;
		}
	}
	if (active && now > entry)
		idle += now - entry;
	*busy = now > idle ? now - idle : 0;
	return true;
}

static __always_inline u64 evk_time(u64 stat, u32 kind)
{
	u64 value;

	evk_read(value, stat + kind * sizeof(u64));
	return value;
}

#define EVK_TIME(stat, kind) evk_time(stat, bpf_core_enum_value(enum cpu_usage_stat, kind))
#define EVK_KIND_IS(kind, number) (bpf_core_enum_value(enum cpu_usage_stat, kind) == (number))

/* CPU time by kind. Each reading costs, so all are read at once where the kernel has them in
 * the order that it had so far. */
static __always_inline void evk_times(u64 stat, u64 *to)
{
	u64 softirq, idle;

	if (EVK_KIND_IS(CPUTIME_USER, 0) && EVK_KIND_IS(CPUTIME_NICE, 1) &&
	    EVK_KIND_IS(CPUTIME_SYSTEM, 2) && EVK_KIND_IS(CPUTIME_SOFTIRQ, 3) &&
	    EVK_KIND_IS(CPUTIME_IRQ, 4) && EVK_KIND_IS(CPUTIME_IDLE, 5) &&
	    EVK_KIND_IS(CPUTIME_IOWAIT, 6) && EVK_KIND_IS(CPUTIME_STEAL, 7)) {
		bpf_probe_read_kernel(to, EVK_TIMES * sizeof(*to), (void *)stat);
		softirq = to[3];
		to[EVK_IRQ_TIME] = to[4];
		to[EVK_SOFTIRQ_TIME] = softirq;
		idle = to[5];
		to[EVK_STEAL_TIME] = to[7];
		to[EVK_IOWAIT_TIME] = to[6];
		to[EVK_IDLE_TIME] = idle;
		return;
	}
	to[EVK_USER_TIME] = EVK_TIME(stat, CPUTIME_USER);
	to[EVK_NICE_TIME] = EVK_TIME(stat, CPUTIME_NICE);
	to[EVK_SYSTEM_TIME] = EVK_TIME(stat, CPUTIME_SYSTEM);
	to[EVK_IRQ_TIME] = EVK_TIME(stat, CPUTIME_IRQ);
	to[EVK_SOFTIRQ_TIME] = EVK_TIME(stat, CPUTIME_SOFTIRQ);
	to[EVK_STEAL_TIME] = EVK_TIME(stat, CPUTIME_STEAL);
	to[EVK_IDLE_TIME] = EVK_TIME(stat, CPUTIME_IDLE);
	to[EVK_IOWAIT_TIME] = EVK_TIME(stat, CPUTIME_IOWAIT);
}

/* CPU time of the kinds that are work, for kernels that do not measure idle time. */
static __always_inline u64 evk_ticks_of_work(u64 stat)
{
	return EVK_TIME(stat, CPUTIME_USER) + EVK_TIME(stat, CPUTIME_NICE) +
	       EVK_TIME(stat, CPUTIME_SYSTEM) + EVK_TIME(stat, CPUTIME_IRQ) +
	       EVK_TIME(stat, CPUTIME_SOFTIRQ) + EVK_TIME(stat, CPUTIME_STEAL);
}

/* Packets that wait for a CPU. */
static __always_inline u32 evk_backlog(u64 net)
{
	return EVK_GET(struct softnet_data, net, input_pkt_queue.qlen) +
	       EVK_GET(struct softnet_data, net, process_queue.qlen);
}

/* Whether the thread of a CPU for soft interrupts has work. */
static __always_inline u32 evk_has_work(u64 thread)
{
	return thread && EVK_GET(struct task_struct, thread, on_rq) == 1;
}

/* Soft interrupts that are raised: 16 bits of it are there on every kernel. */
static __always_inline u32 evk_pending(u64 base, const struct evk_facts *facts)
{
	return facts->softirq_pending == EVK_NOWHERE ?
		       0 :
		       (u16)evk_word(base + facts->softirq_pending);
}

static __always_inline u64 evk_thread(u64 base, const struct evk_facts *facts)
{
	return facts->ksoftirqd == EVK_NOWHERE ? 0 : evk_word(base + facts->ksoftirqd);
}

/* Fills the entry of a CPU. Returns 0 if there is no such CPU, or it is off. */
__noinline int evk_fill_cpu(u32 cpu, struct evk_cpu *out)
{
	struct evk_facts *facts = evk_the_facts();
	u64 base = evk_base_of(cpu);

	if (!out || !facts || !base || !evk_online(base, facts))
		return 0;

	u64 rq = base + facts->runqueues;

	out->time_ns = bpf_ktime_get_ns();
	out->number = cpu;
	out->running = EVK_GET(struct rq, rq, nr_running);
	out->switches = EVK_GET(struct rq, rq, nr_switches);
	out->blocked = EVK_GET(struct rq, rq, nr_iowait.counter);

	if (facts->kernel_cpustat != EVK_NOWHERE)
		evk_times(base + facts->kernel_cpustat, out->times_ns);
	/* Without exact busy time: the kinds that are work. */
	if (!evk_busy(base, facts, out->time_ns, &out->busy_ns) &&
	    facts->kernel_cpustat != EVK_NOWHERE)
		out->busy_ns = evk_ticks_of_work(base + facts->kernel_cpustat);

	if (facts->kstat != EVK_NOWHERE)
		bpf_probe_read_kernel(out->softirqs, sizeof(out->softirqs),
				      (void *)(base + facts->kstat +
					       bpf_core_field_offset(struct kernel_stat, softirqs)));
	out->pending = evk_pending(base, facts);
	if (facts->softnet_data != EVK_NOWHERE) {
		u64 at = base + facts->softnet_data;
		struct softnet_data *net = 0;
		struct softnet_data___atomic *atomic = 0;
		struct softnet_data___counters *counters = 0;

		out->backlog = evk_backlog(at);
		out->squeezed = EVK_GET(struct softnet_data, at, time_squeeze);
		if (bpf_core_field_exists(net->dropped))
			out->dropped = BPF_CORE_READ((struct softnet_data *)at, dropped);
		else if (bpf_core_field_exists(atomic->dropped))
			out->dropped =
				BPF_CORE_READ((struct softnet_data___atomic *)at, dropped.counter);
		else if (bpf_core_field_exists(counters->drop_counters))
			out->dropped = BPF_CORE_READ((struct softnet_data___counters *)at,
						     drop_counters.drops0.counter) +
				       BPF_CORE_READ((struct softnet_data___counters *)at,
						     drop_counters.drops1.counter);
	}
	out->softirq_threads = evk_has_work(evk_thread(base, facts));
	return 1;
}

/* What a query reads afresh of a CPU, or of a cgroup's part of it, and where. */
struct evk_glance {
	u64 base;   /* of the CPU's variables; of a cgroup: its queue on the CPU */
	u64 thread; /* of the CPU's ksoftirqd, or 0; of a cgroup: its entity on the CPU */
	u64 busy_ns;
	u32 running;
	u32 backlog;
	u32 threads;
	u32 pending;
	u32 cpu;
	u32 unused;
};

/* Looks at a CPU, from `at`, whose `base` and `thread` are right, into `out`, which may be the
 * same. */
__noinline int evk_look(u64 now, const struct evk_glance *at, struct evk_glance *out)
{
	struct evk_facts *facts = evk_the_facts();
	u64 busy = 0;

	if (!at || !out || !facts)
		return 0;

	u64 base = at->base;

	out->running = EVK_GET(struct rq, base + facts->runqueues, nr_running);
	out->threads = evk_has_work(at->thread);
	out->pending = evk_pending(base, facts);
	out->backlog =
		facts->softnet_data == EVK_NOWHERE ? 0 : evk_backlog(base + facts->softnet_data);
	if (!evk_busy(base, facts, now, &busy) && facts->kernel_cpustat != EVK_NOWHERE)
		busy = evk_ticks_of_work(base + facts->kernel_cpustat);
	out->busy_ns = busy;
	return 1;
}

/* Adds the entry of a CPU to the sums. */
static __always_inline void evk_add(struct evk_cpu *sum, const struct evk_cpu *one)
{
	for (int i = 0; i < EVK_TIMES; i++)
		sum->times_ns[i] += one->times_ns[i];
	for (int i = 0; i < EVK_SOFTIRQS; i++)
		sum->softirqs[i] += one->softirqs[i];
	sum->busy_ns += one->busy_ns;
	sum->switches += one->switches;
	sum->running += one->running;
	sum->blocked += one->blocked;
	sum->backlog += one->backlog;
	sum->pending |= one->pending;
	sum->dropped += one->dropped;
	sum->squeezed += one->squeezed;
	sum->softirq_threads += one->softirq_threads;
}

/* What evk_fill_cpu has on this kernel. */
static __always_inline u64 evk_has(const struct evk_facts *facts)
{
	u64 has = EVK_HAS_RUNNING | EVK_HAS_SWITCHES | EVK_HAS_BLOCKED;

	if (facts->kernel_cpustat != EVK_NOWHERE)
		has |= EVK_HAS_TIMES;
	if (facts->kernel_cpustat != EVK_NOWHERE || facts->tick_cpu_sched != EVK_NOWHERE)
		has |= EVK_HAS_BUSY;
	if (facts->kstat != EVK_NOWHERE)
		has |= EVK_HAS_SOFTIRQS;
	if (facts->softnet_data != EVK_NOWHERE)
		has |= EVK_HAS_BACKLOG;
	if (facts->ksoftirqd != EVK_NOWHERE)
		has |= EVK_HAS_SOFTIRQ_THREADS;
	return has;
}

/* Fills what a record of the machine has beside CPUs: everything from `pressure` on, and which
 * of it there is. The sums, their time and the number of CPUs must be there already. `begin`,
 * `end`, `source`, `updates` and what says which part of a record it is are the caller's. */
static __always_inline void evk_fill_machine(struct evk_base *out, const struct evk_facts *facts,
					     const struct evk_target *machine)
{
	u64 averages[3];

	out->magic = EVK_RECORD_MAGIC;
	out->version = EVK_VERSION;
	out->scope = EVK_MACHINE;
	/* With another number of CPUs the sums have nothing to do with those before. */
	out->epoch = facts->epoch + out->cpus;
	out->capacity = out->cpus * 1000;
	out->available = evk_has(facts);
	out->time_ns = out->totals.time_ns;
	if (machine->ticked_ns) {
		out->available |= EVK_HAS_RUNNING_AVERAGE;
		out->running_average = machine->running_average >> 16;
	}
	if (machine->pressure_known) {
		out->available |= EVK_HAS_PRESSURE;
		for (int i = 0; i < 5; i++) {
			out->pressure_ns[i] = machine->pressure_ns[i];
			out->pressure_avg10[i] = machine->pressure_avg10[i] >> 16;
		}
	}
	if (machine->memory_total) {
		out->available |= EVK_HAS_MEMORY;
		out->memory_total = machine->memory_total;
		out->memory_available = machine->memory_available;
		out->swap_used = machine->swap_used;
	}
	if (&avenrun && !evk_read(averages, &avenrun)) {
		out->available |= EVK_HAS_LOAD_AVERAGES;
		for (int i = 0; i < 3; i++)
			out->load_averages[i] = averages[i];
	}
}

/* The time for which counters of a tick before are compared with: longer ago is not recent. */
#define EVK_RECENT_NS 1000000000ull

/* Puts the busy time since an earlier tick into a record. Two epochs have nothing to do with each
 * other. */
static __always_inline void evk_fill_recent(struct evk_base *out, u64 epoch, u64 time_ns,
					    u64 busy_ns)
{
	u64 passed = out->time_ns - time_ns;

	if (epoch != out->epoch || out->time_ns <= time_ns || passed > EVK_RECENT_NS ||
	    out->totals.busy_ns < busy_ns)
		return;
	out->available |= EVK_HAS_RECENT;
	out->recent_ns = passed;
	out->recent_busy_ns = out->totals.busy_ns - busy_ns;
}

/* An average that forgets in `long_ns`, after `passed` ns with `value`. */
static __always_inline u64 evk_average(u64 average, u64 value, u64 passed, u64 long_ns)
{
	/* Microseconds, so that the products fit. */
	u64 share = passed / 1000, whole = long_ns / 1000 + share;

	if (!whole)
		return value;
	if (value >= average)
		return average + (value - average) / whole * share +
		       (value - average) % whole * share / whole;
	return average - ((average - value) / whole * share + (average - value) % whole * share / whole);
}

static __always_inline void evk_tick_memory(struct evk_target *machine,
					    const struct evk_facts *facts)
{
	u32 free_item = bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES);
	u32 active = bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE);
	u32 inactive = bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE);
	u32 slab = bpf_core_enum_value(enum node_stat_item, NR_SLAB_RECLAIMABLE_B);
	u32 zones = bpf_core_enum_value(enum zone_type, __MAX_NR_ZONES);
	u64 total = 0, reserve = 0;
	s64 available = 0, cache = 0, value;
	long swap_free = 0;
	unsigned long swap_total = 0;

	for (int i = 0; i < EVK_NODES; i++) {
		if (i >= facts->nodes)
			break;
		struct pglist_data *node = (void *)facts->node[i];
		u64 stat = (u64)node + bpf_core_field_offset(struct pglist_data, vm_stat);

		for (int z = 0; z < 8; z++) {
			if (z >= zones)
				break;
			struct zone *zone = (void *)node +
					    bpf_core_field_offset(struct pglist_data, node_zones) +
					    z * bpf_core_type_size(struct zone);

			total += BPF_CORE_READ(zone, managed_pages.counter);
			evk_read(value, (u64)zone + bpf_core_field_offset(struct zone, vm_stat) +
						free_item * sizeof(value));
			available += value;
		}
		evk_read(value, stat + active * sizeof(value));
		cache += value;
		evk_read(value, stat + inactive * sizeof(value));
		cache += value;
		evk_read(value, stat + slab * sizeof(value));
		cache += value;
		reserve += BPF_CORE_READ(node, totalreserve_pages);
	}
	/* The kernel keeps half of what it could give back, or its low watermark if that is
	 * less; twice the reserve stands for the latter. */
	available -= reserve;
	value = cache >> 1;
	if (value > (s64)(2 * reserve))
		value = 2 * reserve;
	available += cache - value;
	if (available < 0)
		available = 0;
	machine->memory_total = total * facts->page_size;
	machine->memory_available = (u64)available * facts->page_size;
	if (&nr_swap_pages && &total_swap_pages && !evk_read(swap_free, &nr_swap_pages) &&
	    !evk_read(swap_total, &total_swap_pages) && swap_total > swap_free)
		machine->swap_used = (swap_total - swap_free) * facts->page_size;
	else
		machine->swap_used = 0;
}

static __always_inline u32 evk_stall(u32 which)
{
	switch (which) {
	case 0: return bpf_core_enum_value(enum psi_states, PSI_CPU_SOME);
	case 1: return bpf_core_enum_value(enum psi_states, PSI_MEM_SOME);
	case 2: return bpf_core_enum_value(enum psi_states, PSI_MEM_FULL);
	case 3: return bpf_core_enum_value(enum psi_states, PSI_IO_SOME);
	case 4: return bpf_core_enum_value(enum psi_states, PSI_IO_FULL);
	default: return bpf_core_enum_value(enum psi_states, PSI_NONIDLE);
	}
}

/* Adds what a CPU spent under pressure since the last tick. Times are 32 bits of ns, which
 * wrap every 4 s. A state that goes on is not in them yet; the run queue's clock, at most a
 * timer tick old on a busy CPU, says for how long it does. */
__noinline int evk_tick_pressure(u32 cpu)
{
	u32 zero = 0;
	struct evk_facts *facts = evk_the_facts();
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);
	struct evk_stalled *last = bpf_map_lookup_elem(&evk_stalled, &cpu);
	u64 base = evk_base_of(cpu), live = 0;

	if (!facts || !work || !last || !base || facts->psi == EVK_NOWHERE)
		return 0;

	u64 psi = base + facts->psi;
	u64 start = EVK_GET(struct psi_group_cpu, psi, state_start);
	u64 clock = EVK_GET(struct rq, base + facts->runqueues, clock);
	u32 mask = EVK_GET(struct psi_group_cpu, psi, state_mask), times[8] = {}, spent[6];

	if (!start)
		return 0;
	if (clock > start)
		live = clock - start;
	evk_read(times, psi + bpf_core_field_offset(struct psi_group_cpu, times));
	for (int i = 0; i < 6; i++) {
		u32 state = evk_stall(i), time = times[state & 7];

		if (mask & (1u << (state & 31)))
			time += live;
		spent[i] = time - last->times[i];
		/* The clock of another CPU may be a little behind: no time, not 4 s of it. */
		if (spent[i] > 0x80000000u)
			spent[i] = 0;
		else
			last->times[i] = time;
	}
	for (int i = 0; i < 5; i++)
		work->weighted[i] += (u64)(spent[i] / 1000) * (spent[5] / 1000);
	work->weight += spent[5] / 1000;
	return 1;
}

/* Keeps what needs an average; called by a timer every EVK_TICK_NS. `running` is what the
 * target has now. */
static __always_inline void evk_tick_target(struct evk_target *target, u64 running)
{
	u64 now = bpf_ktime_get_ns(), value = running << 27; /* 2048 * 65536 */
	u64 passed = now - target->ticked_ns;

	if (!target->ticked_ns)
		target->running_average = value;
	else
		target->running_average =
			evk_average(target->running_average, value, passed, EVK_AVERAGE_NS);
	target->ticked_ns = now;
}

/* `running` is what the machine has now. */
static __always_inline void evk_tick_machine(u64 running)
{
	u32 zero = 0;
	struct evk_facts *facts = evk_the_facts();
	struct evk_target *machine = bpf_map_lookup_elem(&evk_targets, &zero);
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);
	u64 passed, known = 0;

	if (!facts || !machine || !work)
		return;
	passed = bpf_ktime_get_ns() - machine->ticked_ns;
	__builtin_memset(work, 0, sizeof(*work));
	for (u32 cpu = 0; cpu < EVK_MAX_CPUS; cpu++) {
		if (cpu >= facts->possible)
			break;
		known |= evk_tick_pressure(cpu);
	}
	/* The first tick only learns what the times are. */
	if (known && machine->ticked_ns) {
		for (int i = 0; i < 5; i++) {
			u64 ns = work->weight ? work->weighted[i] / work->weight * 1000 : 0;
			u64 share = passed ? ns * 100 * 2048 / passed : 0;

			if (share > 100 * 2048)
				share = 100 * 2048;
			machine->pressure_ns[i] += ns;
			machine->pressure_avg10[i] =
				evk_average(machine->pressure_avg10[i], share << 16, passed,
					    EVK_TEN_SECONDS_NS);
		}
		machine->pressure_known = 1;
	}
	evk_tick_memory(machine, facts);
	evk_tick_target(machine, running);
}

/* Looks at the next task of the list of all tasks: is it the kswapd thread of a memory node?
 * Returns 0 at the end. A function of its own, so that the verifier looks at it once. */
__noinline int evk_discover_node(u32 at)
{
	u32 zero = 0;
	struct evk_facts *facts = evk_the_facts();
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);
	struct task_struct *task;
	struct task_struct___worker *worker;
	struct kthread *thread;
	struct pglist_data *node;
	char comm[16] = {};
	u64 next;

	if (!facts || !work || facts->nodes >= EVK_NODES)
		return 0;
	task = (void *)work->task;
	next = (u64)BPF_CORE_READ(task, tasks.next);
	if (!next)
		return 0;
	task = (void *)(next - bpf_core_field_offset(struct task_struct, tasks));
	work->task = (u64)task;
	if (!BPF_CORE_READ(task, pid))
		return 0; /* around */
	if (!(BPF_CORE_READ(task, flags) & EVK_PF_KTHREAD))
		return 1;
	BPF_CORE_READ_INTO(&comm, task, comm);
	if (*(u32 *)comm != 0x6177736b /* "kswa" */)
		return 1;
	worker = (void *)task;
	if (bpf_core_field_exists(worker->worker_private))
		thread = BPF_CORE_READ(worker, worker_private);
	else
		thread = BPF_CORE_READ(task, set_child_tid);
	node = BPF_CORE_READ(thread, data);
	if (BPF_CORE_READ(node, kswapd) != task)
		return 1;
	facts->node[facts->nodes & (EVK_NODES - 1)] = (u64)node;
	facts->nodes++;
	return 1;
}

/* Finds the memory nodes. Their threads are among the first tasks. */
static __always_inline void evk_discover_nodes(struct evk_facts *facts, struct task_struct *task)
{
	u32 zero = 0;
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);

	if (!work)
		return;
	for (int i = 0; i < 64; i++) {
		if (!BPF_CORE_READ(task, pid))
			break;
		task = BPF_CORE_READ(task, real_parent);
	}
	work->task = (u64)task;
	facts->nodes = 0;
	for (int i = 0; i < 2048; i++) {
		if (!evk_discover_node(i))
			break;
	}
}

/* Finds the base of a CPU from the run queue of a task group there. */
__noinline int evk_discover_cpu(u32 cpu)
{
	u32 zero = 0, key = cpu, number = EVK_NOWHERE;
	struct evk_facts *facts = evk_the_facts();
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);
	struct cfs_rq *queue = 0;
	u64 base;

	if (!facts || !work)
		return EVK_NO_FACTS;
	if (evk_read(queue, work->queues + cpu * sizeof(queue)) || !queue)
		return EVK_FOUND; /* there may be gaps between CPUs */
	base = (u64)BPF_CORE_READ(queue, rq);
	if (!base)
		return EVK_FOUND;
	base -= facts->runqueues;
	if (facts->cpu_number != EVK_NOWHERE)
		evk_read(number, base + facts->cpu_number);
	else if (facts->softnet_data != EVK_NOWHERE) {
		struct softnet_data *net = (void *)(base + facts->softnet_data);

		number = BPF_CORE_READ(net, cpu);
	}
	if (number != cpu)
		return EVK_WRONG_CPU;
	bpf_map_update_elem(&evk_bases, &key, &base, BPF_ANY);
	return EVK_FOUND;
}

/* Run once by the loader, in its own context. */
SEC("syscall")
int evk_discover(void *ctx)
{
	u32 zero = 0;
	struct evk_facts *facts = evk_the_facts();
	struct evk_work *work = bpf_map_lookup_elem(&evk_work, &zero);
	struct task_struct *task = (void *)bpf_get_current_task();

	if (!facts || !work || !facts->possible)
		return EVK_NO_FACTS;
	if (!bpf_core_field_exists(task->sched_task_group) ||
	    !bpf_core_field_exists(struct task_group, cfs_rq))
		return EVK_NO_GROUP;
	work->queues = (u64)BPF_CORE_READ(task, sched_task_group, cfs_rq);
	if (!work->queues)
		return EVK_NO_GROUP;
	for (u32 cpu = 0; cpu < EVK_MAX_CPUS; cpu++) {
		if (cpu >= facts->possible)
			break;
		int found = evk_discover_cpu(cpu);
		if (found)
			return found;
	}
	evk_discover_nodes(facts, task);
	return EVK_FOUND;
}

#endif
