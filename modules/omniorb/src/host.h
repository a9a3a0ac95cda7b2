// Loads of the host that this process runs on, as the kernel counts them.
#ifndef EVENKEEL_HOST_H
#define EVENKEEL_HOST_H

#include <chrono>
#include <map>
#include <mutex>
#include <string>

namespace evenkeel {
namespace host {

// Share of the host's memory in use, 0 to 1, without what the kernel can take back; NaN where
// the kernel does not tell it.
float memory();

// Busiest of several devices, between one call and the next. May be called by several threads.
class Busiest {
public:
  virtual ~Busiest() = default;

  // The largest share of time or capacity in use since the last call, 0 to 1; NaN where nothing
  // can be compared.
  float measure();

protected:
  // Seconds for which each device was in use until now: of a disk, or of one direction of an
  // interface at its full speed.
  typedef std::map<std::string, double> Counts;
  virtual Counts count() const = 0;
  // Takes the first counts. To be called once by the constructor of each kind.
  void begin();

private:
  typedef std::chrono::steady_clock Clock;

  std::mutex lock_;
  Clock::time_point at_;
  Counts counts_;
};

// Disks, by the time in which they had something to do.
class Disks : public Busiest {
public:
  Disks() { begin(); }

protected:
  Counts count() const override;
};

// Network interfaces, each direction by itself.
class Interfaces : public Busiest {
public:
  // `capacity` is in bits per second each way; 0 takes the speed that each interface tells.
  explicit Interfaces(double capacity) : capacity_(capacity) { begin(); }

protected:
  Counts count() const override;

private:
  const double capacity_;
};

} // namespace host
} // namespace evenkeel

#endif
