// Keeps a location registered with the manager.
#ifndef EVENKEEL_KEEPER_H
#define EVENKEEL_KEEPER_H

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <evenkeel/omniorb.h>

#include "alarm.h"
#include "gate.h"
#include "sampler.h"

namespace evenkeel {

// What the application wants is written down under a lock; one thread makes the manager
// know it. Nothing is called with the lock held.
class Location::Keeper {
public:
  Keeper(CORBA::ORB_ptr orb, const std::string &name, const Options &options);

  // A nil group: made by a factory, the manager knows which.
  void add(CORBA::Object_ptr group, CORBA::Object_ptr object);
  void remove(CORBA::Object_ptr object);
  void monitor(const Loads &loads, std::chrono::milliseconds push);
  bool wait(std::chrono::milliseconds limit);
  void leave(std::chrono::milliseconds drain);
  bool alerted() const { return alarm_->alerted(); }
  CosLoadBalancing::LoadList loads() const;

private:
  typedef std::chrono::steady_clock Clock;

  // An object of ours.
  struct Active {
    PortableServer::ObjectId_var id;
    CORBA::Object_var reference;
    std::string key;
  };

  struct Member {
    CORBA::Object_var object;
    std::string key;
    // As given, then as the manager has it; nil if a factory made the object and it is not
    // known yet.
    CORBA::Object_var group;
    bool created;
    bool known = false;
    // To be taken out.
    std::atomic<bool> unwanted{false};
  };
  typedef std::shared_ptr<Member> MemberPtr;

  const CORBA::ORB_var orb_;
  const std::string text_;
  const CosNaming::Name name_;
  const Options options_;
  gate::Site &site_;
  const std::shared_ptr<Alarm> alarm_;
  PortableServer::POA_var poa_;
  Active alert_;
  Active monitor_;

  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::vector<MemberPtr> members_;
  std::shared_ptr<Sampler> sampler_;
  std::chrono::milliseconds push_ = std::chrono::milliseconds::zero();
  bool monitor_wanted_ = false;
  bool counts_ = false;
  bool alert_known_ = false;
  bool monitor_known_ = false;
  bool news_ = false;
  bool leaving_ = false;
  std::chrono::milliseconds drain_ = std::chrono::milliseconds::zero();

  // Of the thread alone.
  CosLoadBalancing::LoadManager_var manager_;
  Clock::time_point next_try_;
  Clock::time_point next_check_;
  Clock::time_point next_push_;
  bool answers_ = true;
  std::set<std::string> complaints_;

  // The last one: it uses all the others.
  std::thread thread_;

  // With the lock held: whether all is registered.
  bool complete() const;

  Active activate(PortableServer::ServantBase *servant) const;
  void deactivate(Active &object) const;
  std::vector<MemberPtr> members() const;
  void log(const std::string &what) const;

  // The thread, and what it does.
  void run();
  void work();
  bool pass(void (Keeper::*what)());
  void register_all();
  void check_all();
  void push();
  void take_all();
  void complain(const std::string &what);

  bool put_alert();
  bool put_monitor();
  void put(const MemberPtr &member);
  void take(const MemberPtr &member);
  CORBA::Object_ptr join(const Member &member);
  CORBA::Object_ptr find(const Member &member);
  bool knows_alert();
  bool knows_monitor();
  bool knows(const Member &member);
  bool stale(CORBA::Object_ptr other, const char *what);
  template <class Interface> typename Interface::_ptr_type impatient(CORBA::Object_ptr object) const;
};

} // namespace evenkeel

#endif
