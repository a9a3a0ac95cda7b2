#include "sampler.h"

#include <cmath>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <sched.h>
#include <sys/resource.h>

#include "host.h"

namespace evenkeel {

namespace {

// Two samples closer to each other would say more about chance than about load.
const std::chrono::milliseconds LEAST(200);

double seconds(const timeval &time) { return double(time.tv_sec) + double(time.tv_usec) / 1e6; }

// CPUs that this process may run on.
double cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

double process_seconds() {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Ticks of all CPUs together: those in use and all, idle ones included.
std::pair<double, double> host_ticks() {
  std::ifstream stat("/proc/stat");
  std::string word;
  stat >> word;
  double used = 0, all = 0, ticks = 0;
  // user nice system idle iowait irq softirq steal; guests are in user and nice.
  for (int field = 0; field < 8 && stat >> ticks; field++) {
    all += ticks;
    if (field != 3 && field != 4) used += ticks;
  }
  return {used, all};
}

} // namespace

Loads &Loads::host_cpu(CosLoadBalancing::LoadId id) {
  sources_.push_back({Kind::host_cpu, id, Requests::of_members, nullptr});
  return *this;
}

Loads &Loads::process_cpu(CosLoadBalancing::LoadId id) {
  sources_.push_back({Kind::process_cpu, id, Requests::of_members, nullptr});
  return *this;
}

Loads &Loads::host_memory(CosLoadBalancing::LoadId id) { return custom(id, host::memory); }

Loads &Loads::host_disk(CosLoadBalancing::LoadId id) {
  auto disks = std::make_shared<host::Disks>();
  return custom(id, [disks] { return disks->measure(); });
}

Loads &Loads::host_network(double capacity, CosLoadBalancing::LoadId id) {
  if (!(capacity >= 0) || std::isinf(capacity))
    throw std::invalid_argument("host_network: a capacity in bits per second is 0 or above");
  auto interfaces = std::make_shared<host::Interfaces>(capacity);
  return custom(id, [interfaces] { return interfaces->measure(); });
}

Loads &Loads::requests_per_second(Requests which, CosLoadBalancing::LoadId id) {
  sources_.push_back({Kind::requests_per_second, id, which, nullptr});
  return *this;
}

Loads &Loads::in_flight(Requests which, CosLoadBalancing::LoadId id) {
  sources_.push_back({Kind::in_flight, id, which, nullptr});
  return *this;
}

Loads &Loads::custom(CosLoadBalancing::LoadId id, Function load) {
  sources_.push_back({Kind::custom, id, Requests::of_members, std::move(load)});
  return *this;
}

Sampler::Sampler(const Loads &loads, gate::Site &site)
    : sources_(loads.sources_), site_(site), at_(Clock::now()) {
  // A quantity that is told as it is has nothing before the first sample.
  for (const Loads::Source &source : sources_)
    counts_.push_back(rate(source) ? count(source, at_) : Count());
}

bool Sampler::counts(const Loads &loads) {
  for (const Loads::Source &source : loads.sources_)
    if (source.kind == Loads::Kind::requests_per_second || source.kind == Loads::Kind::in_flight)
      return true;
  return false;
}

bool Sampler::counts_process(const Loads &loads) {
  for (const Loads::Source &source : loads.sources_)
    if (source.which == Requests::of_process) return true;
  return false;
}

bool Sampler::rate(const Loads::Source &source) {
  return source.kind != Loads::Kind::in_flight && source.kind != Loads::Kind::custom;
}

CosLoadBalancing::LoadList Sampler::sample() {
  std::lock_guard<std::mutex> guard(lock_);
  Clock::time_point now = Clock::now();
  // The first one, over however short a time, is better than none.
  if (last_.length() > 0 && now - at_ < LEAST) return last_;
  CosLoadBalancing::LoadList loads;
  for (std::size_t i = 0; i < sources_.size(); i++) {
    Count next = count(sources_[i], now);
    double load = next.used;
    if (rate(sources_[i])) {
      // Nothing has passed on a clock as coarse as that of the host: nothing is known.
      double passed = next.total - counts_[i].total;
      load = passed > 0 ? (next.used - counts_[i].used) / passed : NAN;
    }
    counts_[i] = next;
    if (!std::isfinite(load)) continue;
    CORBA::ULong length = loads.length();
    loads.length(length + 1);
    loads[length].id = sources_[i].id;
    loads[length].value = CORBA::Float(load);
  }
  at_ = now;
  last_ = loads;
  return loads;
}

Sampler::Count Sampler::count(const Loads::Source &source, Clock::time_point now) const {
  double time = std::chrono::duration<double>(now.time_since_epoch()).count();
  switch (source.kind) {
  case Loads::Kind::host_cpu: {
    auto ticks = host_ticks();
    return {ticks.first, ticks.second};
  }
  case Loads::Kind::process_cpu:
    return {process_seconds(), time * cpus()};
  case Loads::Kind::requests_per_second:
    return {double(site_.requests.load(std::memory_order_relaxed)), time};
  case Loads::Kind::in_flight:
    return {double(site_.in_flight.load(std::memory_order_relaxed)), time};
  case Loads::Kind::custom:
    break;
  }
  try {
    return {source.load ? double(source.load()) : NAN, time};
  } catch (...) {
    return {NAN, time};
  }
}

} // namespace evenkeel
