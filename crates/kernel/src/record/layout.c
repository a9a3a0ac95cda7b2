/* Writes a load record, and after it a query's envelope, in which every field has another
 * number, for the test that the layout in C is the one in Rust. */
#include <stdio.h>
#include <string.h>
#include "record.h"

static unsigned long long next = 2;

static void fill_cpu(struct evk_cpu *cpu)
{
	cpu->begin = 4;
	cpu->time_ns = next++;
	for (int i = 0; i < EVK_TIMES; i++)
		cpu->times_ns[i] = next++;
	cpu->busy_ns = next++;
	cpu->switches = next++;
	cpu->running = next++;
	cpu->blocked = next++;
	cpu->backlog = next++;
	cpu->pending = next++;
	for (int i = 0; i < EVK_SOFTIRQS; i++)
		cpu->softirqs[i] = next++;
	cpu->dropped = next++;
	cpu->squeezed = next++;
	cpu->number = next++;
	cpu->softirq_threads = next++;
	cpu->end = 4;
}

int main(void)
{
	static union {
		struct evk_record record;
		char bytes[sizeof(struct evk_record) + sizeof(struct evk_cpu)];
	} out;
	struct evk_base *base = &out.record.base;
	struct evk_envelope envelope;

	base->magic = EVK_RECORD_MAGIC;
	base->version = EVK_VERSION;
	base->source = EVK_KERNEL_PAGE;
	base->scope = EVK_CGROUP;
	base->begin = base->end = 6;
	base->time_ns = next++;
	base->epoch = next++;
	base->available = EVK_HAS_BACKLOG | EVK_HAS_BLOCKED;
	base->cpus = EVK_MAX_CPUS;
	base->capacity = next++;
	base->first_cpu = next++;
	base->entries = 1;
	base->ports = EVK_PORTS;
	base->target = next++;
	base->updates = next++;
	base->recent_busy_ns = next++;
	fill_cpu(&base->totals);
	for (int i = 0; i < 5; i++)
		base->pressure_ns[i] = next++;
	for (int i = 0; i < 5; i++)
		base->pressure_avg10[i] = next++;
	base->recent_ns = next++;
	base->memory_total = next++;
	base->memory_available = next++;
	base->swap_used = next++;
	for (int i = 0; i < 3; i++)
		base->load_averages[i] = next++;
	base->running_average = next++;
	for (int i = 0; i < EVK_PORTS; i++) {
		out.record.port[i].port = next++;
		out.record.port[i].listening = 1;
		out.record.port[i].backlog = next++;
		out.record.port[i].limit = next++;
	}
	fill_cpu(&out.record.cpu[0]);
	fwrite(&out, sizeof(out), 1, stdout);

	memset(&envelope, 0, sizeof(envelope));
	envelope.magic = EVK_QUERY_MAGIC;
	envelope.version = EVK_QUERY_VERSION;
	envelope.kind = EVK_REPLY;
	envelope.length = sizeof(envelope) + sizeof(out);
	envelope.target = next++;
	envelope.first_cpu = next++;
	envelope.reader = next++;
	envelope.number = next++;
	envelope.host = next++;
	fwrite(&envelope, sizeof(envelope), 1, stdout);
	return 0;
}
