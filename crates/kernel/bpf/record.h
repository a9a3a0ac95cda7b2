/* The load record and the query for it, as they stand in memory and on the wire.
 *
 * The same layout in Rust, with what each field means: ../src/record.rs and
 * ../src/query.rs. A test there compiles this file and compares sizes and offsets.
 * Everything is little-endian; a change of any offset in a record is a new EVK_VERSION, one
 * in an envelope a new EVK_QUERY_VERSION.
 */
#ifndef EVENKEEL_RECORD_H
#define EVENKEEL_RECORD_H

#define EVK_RECORD_MAGIC 0x524b5645u /* "EVKR" */
#define EVK_QUERY_MAGIC 0x514b5645u  /* "EVKQ" */
#define EVK_VERSION 1
#define EVK_QUERY_VERSION 2

#define EVK_PORTS 16
#define EVK_SOFTIRQS 10
#define EVK_MAX_CPUS 512

enum evk_source { EVK_RESPONDER = 1, EVK_KERNEL_PAGE = 2, EVK_USER = 3 };
enum evk_scope { EVK_MACHINE = 1, EVK_CGROUP = 2 };
enum evk_kind { EVK_QUERY = 1, EVK_REPLY = 2 };

/* What a record has: bits of evk_head.available. */
enum evk_available {
	EVK_HAS_TIMES = 1 << 0,
	EVK_HAS_BUSY = 1 << 1,
	EVK_HAS_RUNNING = 1 << 2,
	EVK_HAS_SWITCHES = 1 << 3,
	EVK_HAS_SOFTIRQS = 1 << 4,
	EVK_HAS_BACKLOG = 1 << 5,
	EVK_HAS_PRESSURE = 1 << 6,
	EVK_HAS_MEMORY = 1 << 7,
	EVK_HAS_LOAD_AVERAGES = 1 << 8,
	EVK_HAS_PORTS = 1 << 9,
	EVK_HAS_SOFTIRQ_THREADS = 1 << 10,
	EVK_HAS_RUNNING_AVERAGE = 1 << 11,
	EVK_HAS_BLOCKED = 1 << 12,
	EVK_HAS_RECENT = 1 << 13,
};

enum evk_time {
	EVK_USER_TIME, EVK_NICE_TIME, EVK_SYSTEM_TIME, EVK_IRQ_TIME,
	EVK_SOFTIRQ_TIME, EVK_STEAL_TIME, EVK_IDLE_TIME, EVK_IOWAIT_TIME,
	EVK_TIMES
};

/* One CPU, or the sums over all of them. 176 bytes. */
struct evk_cpu {
	unsigned long long begin;
	unsigned long long time_ns;
	unsigned long long times_ns[EVK_TIMES];
	unsigned long long busy_ns;
	unsigned long long switches;
	unsigned int running;
	unsigned int blocked;
	unsigned int backlog;
	unsigned int pending;
	unsigned int softirqs[EVK_SOFTIRQS];
	unsigned int dropped;
	unsigned int squeezed;
	unsigned int number;
	unsigned int softirq_threads;
	unsigned long long end;
};

struct evk_port {
	unsigned short port;
	unsigned short listening;
	unsigned int backlog;
	unsigned int limit;
};

/* The part that every copy of a record has. 360 bytes. */
struct evk_base {
	unsigned int magic;
	unsigned short version;
	unsigned char source;
	unsigned char scope;
	unsigned long long begin;
	unsigned long long time_ns;
	unsigned long long epoch;
	unsigned long long available;
	unsigned int cpus;
	unsigned int capacity;
	unsigned short first_cpu;
	unsigned short entries;
	unsigned short ports;
	unsigned short target;
	unsigned long long updates;
	unsigned long long recent_busy_ns;
	struct evk_cpu totals;
	unsigned long long pressure_ns[5];
	unsigned int pressure_avg10[5];
	unsigned int recent_ns;
	unsigned long long memory_total;
	unsigned long long memory_available;
	unsigned long long swap_used;
	unsigned int load_averages[3];
	unsigned int running_average;
	unsigned long long end;
};

/* A whole record: what a page holds, and of what a reply holds a prefix. */
struct evk_record {
	struct evk_base base;
	struct evk_port port[EVK_PORTS];
	struct evk_cpu cpu[];
};

/* Before the record in a datagram; a query has padding in the record's place. 48 bytes. */
struct evk_envelope {
	unsigned int magic;
	unsigned char version;
	unsigned char kind;
	unsigned short length;
	unsigned short key;
	unsigned short target;
	unsigned short first_cpu;
	unsigned short reserved;
	unsigned long long reader;
	unsigned long long number;
	unsigned long long host;
	unsigned long long mac;
};

#endif
