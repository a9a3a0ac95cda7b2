/* What of the kernel's types these programs read, and nothing else.
 *
 * The loader looks each member up in the BTF of the kernel that it finds (CO-RE), so order and
 * size here mean nothing; a name that ends in ___something is the same type as it was, or as
 * it is called, in other versions. Enumerators are looked up, too: use bpf_core_enum_value.
 */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next, *prev;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic64_t;

/* Scheduler. */

struct rq;

struct cfs_rq {
	unsigned int h_nr_running; /* until 6.13 */
	struct rq *rq;
};

struct cfs_rq___queued {
	unsigned int h_nr_queued; /* since 6.14 */
};

struct cfs_rq___limbo {
	struct list_head throttled_limbo_list; /* since 6.18: tasks wait there, not in the queue */
};

struct task_struct;

struct rq {
	unsigned int nr_running;
	u64 nr_switches;
	atomic_t nr_iowait;
	u64 clock;
	int online;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	unsigned int flags;
};

struct cfs_bandwidth {
	s64 period;
	u64 quota;
};

struct task_group {
	struct cgroup_subsys_state css;
	struct sched_entity **se;
	struct cfs_rq **cfs_rq;
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
};

struct files_struct;
struct nsproxy;

struct task_struct {
	struct task_group *sched_task_group;
	struct task_struct *real_parent;
	struct list_head tasks;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	unsigned int flags;
	int pid;
	int on_rq;
	char comm[16];
	void *set_child_tid; /* of kernel threads, until 5.16: their struct kthread */
};

struct task_struct___worker {
	void *worker_private; /* since 5.17 */
};

struct kthread {
	void *data;
};

/* How long a CPU has been idle, exact to the moment. */

struct tick_sched {
	s64 idle_entrytime;
	s64 idle_sleeptime;
	s64 iowait_sleeptime;
	unsigned int idle_active : 1; /* until 6.8 */
};

struct tick_sched___flags {
	unsigned long flags; /* since 6.9 */
};

struct seqcount {
	unsigned int sequence;
};

struct tick_sched___seq {
	struct seqcount idle_sleeptime_seq; /* since 6.2 */
};

/* CPU time by kind, soft interrupts. */

enum cpu_usage_stat {
	CPUTIME_USER,
	CPUTIME_NICE,
	CPUTIME_SYSTEM,
	CPUTIME_SOFTIRQ,
	CPUTIME_IRQ,
	CPUTIME_IDLE,
	CPUTIME_IOWAIT,
	CPUTIME_STEAL,
};

struct kernel_cpustat {
	u64 cpustat[10];
};

struct kernel_stat {
	unsigned int softirqs[10];
};

/* Packets that wait for a CPU. */

struct sk_buff_head {
	u32 qlen;
};

struct softnet_data {
	struct sk_buff_head process_queue;
	struct sk_buff_head input_pkt_queue;
	unsigned int time_squeeze;
	unsigned int cpu;
	unsigned int dropped;
};

struct softnet_data___atomic {
	atomic_t dropped;
};

struct numa_drop_counters {
	atomic_t drops0;
	atomic_t drops1;
};

struct softnet_data___counters {
	struct numa_drop_counters drop_counters; /* since 6.18 */
};

/* Pressure stall information. */

enum psi_states {
	PSI_IO_SOME,
	PSI_IO_FULL,
	PSI_MEM_SOME,
	PSI_MEM_FULL,
	PSI_CPU_SOME,
	PSI_NONIDLE,
};

struct psi_group_cpu {
	u32 state_mask;
	u32 times[8];
	u64 state_start;
};

struct psi_group {
	struct psi_group_cpu *pcpu;
};

/* Memory. */

enum zone_type {
	__MAX_NR_ZONES,
};

enum zone_stat_item {
	NR_FREE_PAGES,
};

enum node_stat_item {
	NR_INACTIVE_FILE,
	NR_ACTIVE_FILE,
	NR_SLAB_RECLAIMABLE_B,
};

struct zone {
	atomic64_t managed_pages;
	atomic64_t vm_stat[16];
};

struct pglist_data {
	struct zone node_zones[8];
	int node_id;
	struct task_struct *kswapd;
	unsigned long totalreserve_pages;
	atomic64_t vm_stat[64];
};

/* Cgroups. */

struct kernfs_node {
	u64 id;
	void *priv;
};

enum cgroup_subsys_id {
	cpu_cgrp_id,
	memory_cgrp_id,
};

struct cgroup {
	struct cgroup_subsys_state *subsys[16];
	struct kernfs_node *kn;
	int level;
};

struct cgroup___psi {
	struct psi_group *psi; /* since 6.1 */
};

struct inode {
	void *i_private;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	struct file **fd;
	unsigned int max_fds;
};

struct files_struct {
	struct fdtable *fdt;
};

struct page_counter {
	atomic64_t usage;
	unsigned long max;
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
};

/* Sockets that listen. */

struct sock;

struct sock_reuseport {
	u16 num_socks;
	struct sock *socks[0];
};

struct net;

typedef struct {
	struct net *net;
} possible_net_t;

struct nsproxy {
	struct net *net_ns;
};

struct sock_common {
	u16 skc_num;
	unsigned char skc_state;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	u32 sk_ack_backlog;
	u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
};

#pragma clang attribute pop

#endif
