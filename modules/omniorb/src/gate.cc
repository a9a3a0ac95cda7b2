#include "gate.h"

#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include <omniORB4/IIOP.h>
#include <omniORB4/omniInterceptors.h>
// Of the ORB's own headers: the target of a request is not in the public ones.
#include <giopStream.h>
#include <giopStrand.h>
#include <GIOP_S.h>

namespace evenkeel {
namespace gate {

namespace {

struct Entry {
  // Null: exempt.
  Site *site;
  // Nil: not known yet.
  CORBA::Object_var group;
};

// Objects by key. Read for each request while somebody counts or diverts: the ORB itself
// takes a lock of the whole process for each.
std::shared_mutex lock;
std::unordered_map<std::string, Entry> entries;
Site *process_site = nullptr;

// How many sites count or divert. Zero for most servers most of the time.
std::atomic<unsigned> watching{0};

// The site of the request that this thread handles. A thread handles one at a time.
thread_local Site *current = nullptr;

void answered() {
  if (current) current->in_flight.fetch_sub(1, std::memory_order_relaxed);
  current = nullptr;
}

// What a member answers under an alert too: liveness must not depend on load, and a type
// check is no load.
bool always_answered(const char *operation) {
  static const char *const OPERATIONS[] = {"_is_a",         "_non_existent", "_not_existent",
                                           "_get_loads",    "enable_alert",  "disable_alert"};
  for (const char *known : OPERATIONS)
    if (!std::strcmp(operation, known)) return true;
  return false;
}

// Throws to send the request back.
void admit(omni::GIOP_S &request) {
  // A servant that forwarded, or a client that has gone, left without an answer.
  answered();
  if (request.keysize() < 0) return;
  std::string key(reinterpret_cast<const char *>(request.key()), request.keysize());
  std::shared_lock<std::shared_mutex> guard(lock);
  auto found = entries.find(key);
  bool known = found != entries.end();
  Site *site = known ? found->second.site : process_site;
  if (!site) return;
  bool answer = request.response_expected();
  if (known && answer && site->diverts.load(std::memory_order_relaxed) &&
      !always_answered(request.operation())) {
    CORBA::Object_ptr group = found->second.group;
    if (CORBA::is_nil(group)) throw CORBA::TRANSIENT(0, CORBA::COMPLETED_NO);
    throw omniORB::LOCATION_FORWARD(CORBA::Object::_duplicate(group));
  }
  site->requests.fetch_add(1, std::memory_order_relaxed);
  if (!answer) return;
  site->in_flight.fetch_add(1, std::memory_order_relaxed);
  current = site;
}

CORBA::Boolean receive(omni::omniInterceptors::serverReceiveRequest_T::info_T &info) {
  if (watching.load(std::memory_order_relaxed)) admit(info.giop_s);
  return true;
}

CORBA::Boolean reply(omni::omniInterceptors::serverSendReply_T::info_T &) {
  answered();
  return true;
}

CORBA::Boolean exception(omni::omniInterceptors::serverSendException_T::info_T &) {
  answered();
  return true;
}

// A thread that the ORB has done with may wait long for its next request.
void upcalls(omni::omniInterceptors::assignUpcallThread_T::info_T &info) {
  info.run();
  answered();
}

} // namespace

Site &site() { return *new Site; }

void open() {
  static std::once_flag once;
  std::call_once(once, [] {
    omni::omniInterceptors *interceptors = omniORB::getInterceptors();
    interceptors->serverReceiveRequest.add(receive);
    interceptors->serverSendReply.add(reply);
    interceptors->serverSendException.add(exception);
    interceptors->assignUpcallThread.add(upcalls);
  });
}

void divert(Site &site, bool on) {
  if (site.diverts.exchange(on) == on) return;
  if (on) watching++;
  else watching--;
}

void count(bool on) {
  if (on) watching++;
  else watching--;
}

bool count_process(Site &site, bool on) {
  std::unique_lock<std::shared_mutex> guard(lock);
  if (process_site && process_site != &site) return false;
  process_site = on ? &site : nullptr;
  return true;
}

std::string key(CORBA::Object_ptr object) {
  if (CORBA::is_nil(object)) throw CORBA::BAD_PARAM(0, CORBA::COMPLETED_NO);
  omniIOR_var ior = object->_PR_getobj()->_getIOR();
  const IOP::TaggedProfileList &profiles = ior->iopProfiles();
  for (CORBA::ULong i = 0; i < profiles.length(); i++) {
    if (profiles[i].tag != IOP::TAG_INTERNET_IOP) continue;
    _CORBA_Unbounded_Sequence_Octet octets;
    IIOP::unmarshalObjectKey(profiles[i], octets);
    return std::string(reinterpret_cast<const char *>(octets.get_buffer()), octets.length());
  }
  throw CORBA::BAD_PARAM(0, CORBA::COMPLETED_NO);
}

void exempt(const std::string &key) {
  std::unique_lock<std::shared_mutex> guard(lock);
  entries[key] = Entry{nullptr, CORBA::Object_var()};
}

bool add(const std::string &key, Site &site, CORBA::Object_ptr group) {
  std::unique_lock<std::shared_mutex> guard(lock);
  return entries.emplace(key, Entry{&site, CORBA::Object::_duplicate(group)}).second;
}

void set_group(const std::string &key, CORBA::Object_ptr group) {
  std::unique_lock<std::shared_mutex> guard(lock);
  auto found = entries.find(key);
  if (found != entries.end()) found->second.group = CORBA::Object::_duplicate(group);
}

void remove(const std::string &key) {
  std::unique_lock<std::shared_mutex> guard(lock);
  entries.erase(key);
}

} // namespace gate
} // namespace evenkeel
