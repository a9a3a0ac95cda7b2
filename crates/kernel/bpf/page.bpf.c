/* The kernel load page: a record in memory that processes and RDMA devices can read, kept
 * current by the kernel alone.
 *
 * Every 10 ms a timer fills the base and the entries of all CPUs, which costs the machine a
 * few microseconds on one CPU. When a CPU changes tasks it writes what that changes into its
 * own entry: whether it is busy, for how long it has been, and its queue. An entry is written
 * by whoever makes its sequence number odd, and nobody waits: a change of tasks that comes
 * while the timer writes is written by the timer a moment later.
 *
 * A reader may copy in either direction. So both sequence numbers are odd before anything is
 * written, first the front one; and are even after everything is, first the one behind. The
 * exchanges order what is before and after them on every processor.
 */
#include "fill.bpf.h"

#define EVK_LISTEN 10 /* TCP_LISTEN, the same number for processes and in the kernel */
#define EVK_LISTENERS 1024
#define EVK_MONOTONIC 1

struct evk_page {
	struct evk_base base;
	struct evk_port port[EVK_PORTS];
	struct evk_cpu cpu[EVK_MAX_CPUS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_page);
} evk_page SEC(".maps");

/* Written by the loader, but for the network namespace and what was missed. */
struct evk_plan {
	u64 net;
	u32 slots; /* entries in the page */
	u32 ports;
	u16 port[EVK_PORTS];
	u32 slot[EVK_MAX_CPUS];   /* of a CPU, EVK_NOWHERE if it has none */
	u32 missed[EVK_MAX_CPUS]; /* whether a change of tasks was not written */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_plan);
} evk_plan SEC(".maps");

/* The place of each port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVK_PORTS);
	__type(key, u16);
	__type(value, u32);
} evk_ports SEC(".maps");

/* Sockets that listen at one of the ports, with the place of the port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVK_LISTENERS);
	__type(key, u64);
	__type(value, u32);
} evk_listeners SEC(".maps");

/* The timer, and what it prepares before it is published. */
struct evk_alarm {
	struct bpf_timer timer;
	struct evk_base base;
	struct evk_port port[EVK_PORTS];
	struct evk_cpu cpu;
	/* Of the tick before. */
	u64 epoch;
	u64 time_ns;
	u64 busy_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct evk_alarm);
} evk_alarm SEC(".maps");

static __always_inline struct evk_plan *evk_the_plan(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&evk_plan, &zero);
}

static __always_inline struct evk_cpu *evk_slot(const struct evk_plan *plan, u32 cpu)
{
	u32 zero = 0;
	u64 slot;
	struct evk_page *page = bpf_map_lookup_elem(&evk_page, &zero);

	if (!page || cpu >= EVK_MAX_CPUS)
		return 0;
	slot = plan->slot[cpu];
	if (slot >= EVK_MAX_CPUS)
		return 0;
	/* For the verifier, which may have lost sight of the comparison. */
	slot &= EVK_MAX_CPUS - 1;
	asm volatile("" : "+r"(slot));
	slot &= EVK_MAX_CPUS - 1;
	return &page->cpu[slot];
}

/* Begins to write. Returns an odd number, or 0 if somebody else is writing. */
static __always_inline u64 evk_begin(u64 *begin, u64 *end)
{
	u64 was = *(volatile u64 *)begin;

	if (was & 1 || __sync_val_compare_and_swap(begin, was, was + 1) != was)
		return 0;
	__sync_lock_test_and_set(end, was + 1);
	return was + 1;
}

static __always_inline void evk_end(u64 *begin, u64 *end, u64 number)
{
	__sync_lock_test_and_set(end, number + 1);
	__sync_lock_test_and_set(begin, number + 1);
}

SEC("tp_btf/sched_switch")
int evk_switched(u64 *ctx)
{
	struct task_struct *next = (void *)ctx[2];
	struct evk_facts *facts = evk_the_facts();
	struct evk_plan *plan = evk_the_plan();
	u32 cpu = bpf_get_smp_processor_id(), running;
	u64 base = evk_base_of(cpu), now, busy, number;
	struct evk_cpu *slot;
	bool exact;

	if (!facts || !plan || !base || cpu >= EVK_MAX_CPUS)
		return 0;
	slot = evk_slot(plan, cpu);
	if (!slot)
		return 0;

	u64 rq = base + facts->runqueues;

	now = bpf_ktime_get_ns();
	exact = evk_busy(base, facts, now, &busy);
	running = EVK_GET(struct rq, rq, nr_running);
	if (!next->pid)
		running = 0;
	else if (!running)
		running = 1;
	number = evk_begin(&slot->begin, &slot->end);
	if (!number) {
		plan->missed[cpu] = 1;
		return 0;
	}
	if (exact) {
		slot->time_ns = now;
		slot->busy_ns = busy;
	}
	slot->running = running;
	slot->switches = EVK_GET(struct rq, rq, nr_switches);
	evk_end(&slot->begin, &slot->end, number);
	return 0;
}

#define EVK_ON 1
#define EVK_AGAIN 2

/* Fills the entry of a CPU. Returns EVK_ON if the CPU is on, and EVK_AGAIN if it changed tasks
 * just then and could not write that. */
__noinline int evk_page_fill(u32 cpu)
{
	u32 zero = 0;
	struct evk_plan *plan = evk_the_plan();
	struct evk_alarm *alarm = bpf_map_lookup_elem(&evk_alarm, &zero);
	struct evk_cpu *slot;
	u64 number;
	int on;

	if (!plan || !alarm || cpu >= EVK_MAX_CPUS)
		return 0;
	slot = evk_slot(plan, cpu);
	if (!slot)
		return 0;
	plan->missed[cpu] = 0;
	__builtin_memset(&alarm->cpu, 0, sizeof(alarm->cpu));
	on = evk_fill_cpu(cpu, &alarm->cpu) ? EVK_ON : 0;
	number = evk_begin(&slot->begin, &slot->end);
	if (!number)
		return on | EVK_AGAIN;
	if (!on) {
		slot->running = 0;
	} else if (slot->time_ns <= alarm->cpu.time_ns) {
		__builtin_memcpy(&slot->time_ns, &alarm->cpu.time_ns,
				 offsetof(struct evk_cpu, end) -
					 offsetof(struct evk_cpu, time_ns));
	} else {
		/* It changed tasks since: that is newer, the rest is not. */
		__builtin_memcpy(slot->times_ns, alarm->cpu.times_ns, sizeof(slot->times_ns));
		__builtin_memcpy(&slot->blocked, &alarm->cpu.blocked,
				 offsetof(struct evk_cpu, end) -
					 offsetof(struct evk_cpu, blocked));
	}
	evk_end(&slot->begin, &slot->end, number);
	return *(volatile u32 *)&plan->missed[cpu] ? on | EVK_AGAIN : on;
}

/* Fills the entry of a CPU, and adds it to the sums. A function of its own, so that the verifier
 * looks at it once. */
__noinline int evk_page_cpu(u32 cpu)
{
	u32 zero = 0;
	struct evk_alarm *alarm = bpf_map_lookup_elem(&evk_alarm, &zero);
	int filled = evk_page_fill(cpu);

	if (filled & EVK_AGAIN)
		filled = evk_page_fill(cpu);
	if (!alarm || !(filled & EVK_ON))
		return 0;
	evk_add(&alarm->base.totals, &alarm->cpu);
	alarm->base.cpus++;
	return 0;
}

static long evk_listener(void *map, const u64 *socket, u32 *place, u32 *zero)
{
	struct evk_plan *plan = evk_the_plan();
	struct evk_alarm *alarm = bpf_map_lookup_elem(&evk_alarm, zero);
	struct sock *sk = (void *)*socket;
	u32 i = *place;

	if (!plan || !alarm || i >= EVK_PORTS)
		return 0;
	/* Gone, and its memory perhaps another's. */
	if (BPF_CORE_READ(sk, __sk_common.skc_state) != EVK_LISTEN ||
	    BPF_CORE_READ(sk, __sk_common.skc_num) != plan->port[i])
		return 0;
	alarm->port[i].listening = 1;
	alarm->port[i].backlog += BPF_CORE_READ(sk, sk_ack_backlog);
	alarm->port[i].limit += BPF_CORE_READ(sk, sk_max_ack_backlog);
	return 0;
}

static int evk_ticked(void *map, u32 *key, struct evk_alarm *alarm)
{
	u32 zero = 0;
	struct evk_facts *facts = evk_the_facts();
	struct evk_plan *plan = evk_the_plan();
	struct evk_page *page = bpf_map_lookup_elem(&evk_page, &zero);
	struct evk_target *machine = bpf_map_lookup_elem(&evk_targets, &zero);
	u64 number;

	if (!facts || !plan || !page || !machine)
		return 0;
	__builtin_memset(&alarm->base, 0, sizeof(alarm->base));
	for (u32 cpu = 0; cpu < EVK_MAX_CPUS; cpu++) {
		if (cpu >= facts->possible)
			break;
		evk_page_cpu(cpu);
	}
	alarm->base.totals.time_ns = bpf_ktime_get_ns();
	evk_tick_machine(alarm->base.totals.running);
	evk_fill_machine(&alarm->base, facts, machine);
	if (evk_is_exact(facts))
		evk_fill_recent(&alarm->base, alarm->epoch, alarm->time_ns,
				alarm->busy_ns);
	alarm->epoch = alarm->base.epoch;
	alarm->time_ns = alarm->base.time_ns;
	alarm->busy_ns = alarm->base.totals.busy_ns;
	alarm->base.source = EVK_KERNEL_PAGE;
	alarm->base.cpus = alarm->base.entries = plan->slots;
	alarm->base.updates = page->base.updates + 1;
	__builtin_memset(alarm->port, 0, sizeof(alarm->port));
	if (plan->ports) {
		alarm->base.available |= EVK_HAS_PORTS;
		alarm->base.ports = plan->ports;
		for (int i = 0; i < EVK_PORTS; i++)
			alarm->port[i].port = plan->port[i];
		bpf_for_each_map_elem(&evk_listeners, evk_listener, &zero, 0);
	}

	number = evk_begin(&page->base.begin, &page->base.end);
	if (number) {
		__builtin_memcpy(&page->base, &alarm->base, offsetof(struct evk_base, begin));
		__builtin_memcpy(&page->base.time_ns, &alarm->base.time_ns,
				 offsetof(struct evk_base, end) -
					 offsetof(struct evk_base, time_ns));
		__builtin_memcpy(page->port, alarm->port, sizeof(page->port));
		evk_end(&page->base.begin, &page->base.end, number);
	}
	bpf_timer_start(&alarm->timer, EVK_TICK_NS, 0);
	return 0;
}

/* Run once by the loader, in its own context, when everything is found. */
SEC("syscall")
int evk_start(void *ctx)
{
	u32 zero = 0;
	struct evk_alarm *alarm = bpf_map_lookup_elem(&evk_alarm, &zero);

	if (!alarm || bpf_timer_init(&alarm->timer, &evk_alarm, EVK_MONOTONIC) ||
	    bpf_timer_set_callback(&alarm->timer, evk_ticked))
		return 1;
	return bpf_timer_start(&alarm->timer, 0, 0) ? 1 : 0;
}

/* And before: whose sockets count. */
SEC("syscall")
int evk_place(void *ctx)
{
	struct evk_plan *plan = evk_the_plan();
	struct task_struct *task = (void *)bpf_get_current_task();

	if (!plan)
		return 1;
	plan->net = (u64)BPF_CORE_READ(task, nsproxy, net_ns);
	return 0;
}

static __always_inline void evk_listens(const struct sock_common *sk)
{
	struct evk_plan *plan = evk_the_plan();
	u64 socket = (u64)sk;
	u16 port = sk->skc_num;
	u32 *place = bpf_map_lookup_elem(&evk_ports, &port);

	if (plan && place && (u64)sk->skc_net.net == plan->net)
		bpf_map_update_elem(&evk_listeners, &socket, place, BPF_ANY);
}

SEC("tp_btf/inet_sock_set_state")
int evk_state(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int before = (int)ctx[1], after = (int)ctx[2];
	u64 socket = (u64)sk;

	if (after == EVK_LISTEN)
		evk_listens(&sk->__sk_common);
	else if (before == EVK_LISTEN)
		bpf_map_delete_elem(&evk_listeners, &socket);
	return 0;
}

/* Those that listen already. */
SEC("iter/tcp")
int evk_listening(u64 *ctx)
{
	struct sock_common *sk = (void *)ctx[1];

	if (sk && sk->skc_state == EVK_LISTEN)
		evk_listens(sk);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
