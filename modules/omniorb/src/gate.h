// Between the ORB and the servants: counts requests, and sends them back under an alert.
#ifndef EVENKEEL_GATE_H
#define EVENKEEL_GATE_H

#include <atomic>
#include <cstdint>
#include <string>

#include <omniORB4/CORBA.h>

namespace evenkeel {
namespace gate {

// What one location has to do with requests. The ORB's threads hold pointers to it without
// a lock, so it lives as long as the process.
struct Site {
  // Whether clients are sent back. Changed by `divert` only.
  std::atomic<bool> diverts{false};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::int64_t> in_flight{0};
};

// A new one.
Site &site();

// Puts the gate into the ORB's path, once.
void open();

// Sends clients of the site's members back, or no longer.
void divert(Site &site, bool on);
// Begins to count requests for some site, or ends it: while nobody counts and no alert is on,
// a request costs one atomic read.
void count(bool on);
// Counts requests to objects that are nobody's as this site's, or no longer. False if they
// are another's.
bool count_process(Site &site, bool on);

// The key in the references of an object of this process. Throws BAD_PARAM.
std::string key(CORBA::Object_ptr object);

// Objects that are neither counted nor sent back.
void exempt(const std::string &key);
// A member there, whose clients are sent back to its group; nil: with TRANSIENT, until the
// group is known. False if it is one already.
bool add(const std::string &key, Site &site, CORBA::Object_ptr group);
void set_group(const std::string &key, CORBA::Object_ptr group);
void remove(const std::string &key);

} // namespace gate
} // namespace evenkeel

#endif
