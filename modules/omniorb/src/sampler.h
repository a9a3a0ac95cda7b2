// Measures what a location's monitor tells.
#ifndef EVENKEEL_SAMPLER_H
#define EVENKEEL_SAMPLER_H

#include <chrono>
#include <mutex>

#include <evenkeel/omniorb.h>

#include "gate.h"

namespace evenkeel {

class Sampler {
public:
  // `site` is where the requests of the loads' sort are counted.
  Sampler(const Loads &loads, gate::Site &site);

  // Whether a load of these asks for that sort of requests.
  static bool counts(const Loads &loads);
  static bool counts_process(const Loads &loads);

  // The loads since the last sample, or the last ones again if that was just now.
  CosLoadBalancing::LoadList sample();

private:
  typedef std::chrono::steady_clock Clock;

  // What a source has counted until some time, in its own units.
  struct Count {
    double used;
    double total;
  };

  const std::vector<Loads::Source> sources_;
  gate::Site &site_;
  std::mutex lock_;
  Clock::time_point at_;
  std::vector<Count> counts_;
  CosLoadBalancing::LoadList last_;

  // Whether its load is what has changed since the last sample.
  static bool rate(const Loads::Source &source);
  Count count(const Loads::Source &source, Clock::time_point now) const;
};

} // namespace evenkeel

#endif
