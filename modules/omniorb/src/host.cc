#include "host.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include <unistd.h>

namespace evenkeel {
namespace host {

namespace {

const float NOTHING = std::numeric_limits<float>::quiet_NaN();

// Devices in /proc/diskstats that are no disks: memory, and files of other disks.
const char *const UNREAL[] = {"loop", "ram", "zram", "sr", "fd"};

std::string interface_file(const std::string &name, const char *file) {
  return "/sys/class/net/" + name + "/" + file;
}

// Bits per second that an interface tells; 0 if it does not know.
double speed(const std::string &name) {
  std::ifstream file(interface_file(name, "speed"));
  double megabits = 0;
  return file >> megabits && megabits > 0 ? megabits * 1e6 : 0;
}

} // namespace

float memory() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  double total = 0, available = -1;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    double kib = 0;
    if (!(fields >> name >> kib)) continue;
    if (name == "MemTotal:") total = kib;
    if (name == "MemAvailable:") available = kib;
  }
  if (total <= 0 || available < 0) return NOTHING;
  return float(std::min(std::max(1 - available / total, 0.0), 1.0));
}

void Busiest::begin() {
  at_ = Clock::now();
  counts_ = count();
}

float Busiest::measure() {
  std::lock_guard<std::mutex> guard(lock_);
  Clock::time_point now = Clock::now();
  Counts counts = count();
  double seconds = std::chrono::duration<double>(now - at_).count();
  float most = NOTHING;
  for (const auto &[name, used] : counts) {
    auto before = counts_.find(name);
    // A device that is new, or has begun to count again: next time.
    if (before == counts_.end() || used < before->second || seconds < 1e-3) continue;
    float share = float(std::min((used - before->second) / seconds, 1.0));
    if (std::isnan(most) || share > most) most = share;
  }
  counts_ = counts;
  at_ = now;
  return most;
}

Busiest::Counts Disks::count() const {
  Counts counts;
  std::ifstream file("/proc/diskstats");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string skipped, name;
    double milliseconds = 0;
    if (!(fields >> skipped >> skipped >> name)) continue;
    bool unreal = std::any_of(std::begin(UNREAL), std::end(UNREAL), [&](const std::string &kind) {
      return name.compare(0, kind.size(), kind) == 0;
    });
    // Before the milliseconds with something to do stand nine other counters.
    for (int field = 0; field < 9; field++) fields >> skipped;
    if (!unreal && fields >> milliseconds) counts[name] = milliseconds / 1e3;
  }
  return counts;
}

Busiest::Counts Interfaces::count() const {
  struct Interface {
    std::string name;
    double received, sent;
    bool has_device;
  };
  std::vector<Interface> found;
  std::ifstream file("/proc/self/net/dev");
  std::string line;
  while (std::getline(file, line)) {
    // The name of an alias has a colon, too.
    std::size_t colon = line.rfind(':');
    std::size_t start = line.find_first_not_of(' ');
    if (colon == std::string::npos || start >= colon) continue;
    std::string name = line.substr(start, colon - start);
    std::istringstream fields(line.substr(colon + 1));
    double received = 0, sent = 0, skipped = 0;
    fields >> received;
    for (int field = 0; field < 7; field++) fields >> skipped;
    if (!(fields >> sent) || name == "lo") continue;
    bool has_device = access(interface_file(name, "device").c_str(), F_OK) == 0;
    found.push_back({name, received, sent, has_device});
  }
  // In a container no interface has a device behind it: there all of them count.
  bool any = std::any_of(found.begin(), found.end(), [](const Interface &one) { return one.has_device; });
  Counts counts;
  for (const Interface &one : found) {
    double capacity = capacity_ > 0 ? capacity_ : speed(one.name);
    if ((any && !one.has_device) || capacity <= 0) continue;
    counts[one.name + " received"] = one.received * 8 / capacity;
    counts[one.name + " sent"] = one.sent * 8 / capacity;
  }
  return counts;
}

} // namespace host
} // namespace evenkeel
