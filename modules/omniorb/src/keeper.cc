#include "keeper.h"

#include <algorithm>
#include <iostream>
#include <sstream>
#include <stdexcept>

namespace evenkeel {

namespace {

class Alert : public POA_CosLoadBalancing::LoadAlert {
public:
  explicit Alert(const std::shared_ptr<Alarm> &alarm) : alarm_(alarm) {}
  void enable_alert() override { alarm_->alert(true); }
  void disable_alert() override { alarm_->alert(false); }

private:
  const std::shared_ptr<Alarm> alarm_;
};

class Monitor : public POA_CosLoadBalancing::LoadMonitor {
public:
  Monitor(const CosNaming::Name &name, const std::shared_ptr<Sampler> &sampler)
      : name_(name), sampler_(sampler) {}
  CosNaming::Name *the_location() override { return new CosNaming::Name(name_); }
  CosLoadBalancing::LoadList *loads() override {
    return new CosLoadBalancing::LoadList(sampler_->sample());
  }

private:
  const CosNaming::Name name_;
  const std::shared_ptr<Sampler> sampler_;
};

// The library's own objects answer while the application's are held or busy.
PortableServer::POA_ptr own_poa(CORBA::ORB_ptr orb) {
  static std::mutex lock;
  std::lock_guard<std::mutex> guard(lock);
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var root = PortableServer::POA::_narrow(object);
  try {
    return root->find_POA("evenkeel", false);
  } catch (const PortableServer::POA::AdapterNonExistent &) {
  }
  CORBA::PolicyList none;
  PortableServer::POA_var poa =
      root->create_POA("evenkeel", PortableServer::POAManager::_nil(), none);
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
  return poa._retn();
}

std::string told(const CORBA::Exception &exception) {
  std::ostringstream out;
  out << exception._name();
  if (const auto *system = CORBA::SystemException::_downcast(&exception))
    out << " (minor code 0x" << std::hex << system->minor() << ")";
  return out.str();
}

CORBA::Boolean never(void *, CORBA::ULong, const CORBA::TRANSIENT &) { return false; }
CORBA::Boolean never(void *, CORBA::ULong, const CORBA::COMM_FAILURE &) { return false; }
CORBA::Boolean never(void *, CORBA::ULong, const CORBA::TIMEOUT &) { return false; }

} // namespace

Location::Keeper::Keeper(CORBA::ORB_ptr orb, const std::string &name, const Options &options)
    : orb_(CORBA::ORB::_duplicate(orb)), text_(name), name_(location_name(name)),
      options_(options), site_(gate::site()), alarm_(std::make_shared<Alarm>(site_)),
      poa_(own_poa(orb)) {
  gate::open();
  alert_ = activate(new Alert(alarm_));
  thread_ = std::thread([this] { run(); });
}

void Location::Keeper::add(CORBA::Object_ptr group, CORBA::Object_ptr object) {
  auto member = std::make_shared<Member>();
  member->key = gate::key(object);
  member->object = CORBA::Object::_duplicate(object);
  member->group = CORBA::Object::_duplicate(group);
  member->created = CORBA::is_nil(group);
  std::lock_guard<std::mutex> guard(lock_);
  if (!gate::add(member->key, site_, group))
    throw std::logic_error("the object is a member already");
  members_.push_back(member);
  news_ = true;
  changed_.notify_all();
}

void Location::Keeper::remove(CORBA::Object_ptr object) {
  std::string key = gate::key(object);
  std::lock_guard<std::mutex> guard(lock_);
  for (const MemberPtr &member : members_) {
    if (member->key != key || member->unwanted) continue;
    member->unwanted = true;
    gate::remove(key);
    news_ = true;
  }
  changed_.notify_all();
}

void Location::Keeper::monitor(const Loads &loads, std::chrono::milliseconds push) {
  std::lock_guard<std::mutex> guard(lock_);
  if (sampler_) throw std::logic_error("location " + text_ + " has a monitor");
  if (Sampler::counts_process(loads) && !gate::count_process(site_, true))
    throw std::logic_error("another location counts the requests of the process");
  counts_ = Sampler::counts(loads);
  if (counts_) gate::count(true);
  sampler_ = std::make_shared<Sampler>(loads, site_);
  push_ = push;
  monitor_wanted_ = push == push.zero();
  if (monitor_wanted_) monitor_ = activate(new Monitor(name_, sampler_));
  news_ = true;
  changed_.notify_all();
}

bool Location::Keeper::wait(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> guard(lock_);
  return changed_.wait_for(guard, limit, [this] { return complete(); });
}

void Location::Keeper::leave(std::chrono::milliseconds drain) {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> guard(lock_);
    leaving_ = true;
    drain_ = drain;
    changed_.notify_all();
  }
  thread_.join();
  std::lock_guard<std::mutex> guard(lock_);
  for (const MemberPtr &member : members_)
    if (!member->unwanted) gate::remove(member->key);
  members_.clear();
  if (counts_) gate::count(false);
  gate::count_process(site_, false);
  deactivate(alert_);
  deactivate(monitor_);
}

CosLoadBalancing::LoadList Location::Keeper::loads() const {
  std::shared_ptr<Sampler> sampler;
  {
    std::lock_guard<std::mutex> guard(lock_);
    sampler = sampler_;
  }
  return sampler ? sampler->sample() : CosLoadBalancing::LoadList();
}

bool Location::Keeper::complete() const {
  bool members = std::all_of(members_.begin(), members_.end(), [](const MemberPtr &member) {
    return member->known && !member->unwanted;
  });
  return members && alert_known_ && (monitor_known_ || !monitor_wanted_);
}

Location::Keeper::Active Location::Keeper::activate(PortableServer::ServantBase *servant) const {
  PortableServer::ServantBase_var held(servant);
  Active object;
  object.id = poa_->activate_object(servant);
  object.reference = poa_->id_to_reference(object.id);
  object.key = gate::key(object.reference);
  gate::exempt(object.key);
  return object;
}

void Location::Keeper::deactivate(Active &object) const {
  if (CORBA::is_nil(object.reference)) return;
  try {
    poa_->deactivate_object(object.id);
  } catch (const CORBA::Exception &) {
    // The application has destroyed the POAs already.
  }
  gate::remove(object.key);
  object.reference = CORBA::Object::_nil();
}

std::vector<Location::Keeper::MemberPtr> Location::Keeper::members() const {
  std::lock_guard<std::mutex> guard(lock_);
  return members_;
}

void Location::Keeper::log(const std::string &what) const {
  std::string line = "location " + text_ + ": " + what;
  if (options_.log) options_.log(line);
  else std::cerr << "evenkeel: " + line + "\n";
}

// Says what concerns one registration, once.
void Location::Keeper::complain(const std::string &what) {
  if (complaints_.insert(what).second) log(what);
}

void Location::Keeper::run() {
  next_try_ = next_push_ = Clock::now();
  next_check_ = next_try_ + options_.check;
  std::unique_lock<std::mutex> guard(lock_);
  while (!leaving_) {
    guard.unlock();
    work();
    guard.lock();
    changed_.notify_all();
    Clock::time_point wake = Clock::now() + options_.retry;
    if (push_ > push_.zero()) wake = std::min(wake, next_push_);
    changed_.wait_until(guard, wake, [this] { return news_ || leaving_; });
    if (news_) next_try_ = Clock::now();
    news_ = false;
  }
  guard.unlock();
  // Whom the manager has forgotten goes; who is still bound is sent back.
  if (pass(&Keeper::take_all) && drain_ > drain_.zero()) {
    alarm_->leaving(true);
    std::this_thread::sleep_for(drain_);
  }
  alarm_->leaving(false);
  alarm_->alert(false);
}

// What is due.
void Location::Keeper::work() {
  bool registers, pushes;
  {
    std::lock_guard<std::mutex> guard(lock_);
    registers = !complete();
    pushes = push_ > push_.zero();
  }
  if (registers && Clock::now() >= next_try_) {
    pass(&Keeper::register_all);
    next_try_ = Clock::now() + options_.retry;
  }
  if (Clock::now() >= next_check_) {
    bool answers = pass(&Keeper::check_all);
    // While clients are sent to the manager, it had better be there.
    bool often = !answers || alarm_->alerted();
    next_check_ = Clock::now() + (often ? options_.retry : options_.check);
  } else if (alarm_->alerted()) {
    next_check_ = std::min(next_check_, Clock::now() + options_.retry);
  }
  if (pushes && Clock::now() >= next_push_) {
    pass(&Keeper::push);
    // A round that was missed is not made up for.
    next_push_ = std::max(next_push_ + push_, Clock::now());
  }
}

// Calls the manager; whether it has answered all.
bool Location::Keeper::pass(void (Keeper::*what)()) {
  std::string silence;
  try {
    if (CORBA::is_nil(manager_)) {
      CosLoadBalancing::LoadManager_var found = manager(orb_, options_.manager);
      manager_ = impatient<CosLoadBalancing::LoadManager>(found);
    }
    (this->*what)();
  } catch (const CORBA::Exception &exception) {
    silence = told(exception);
  } catch (const std::exception &exception) {
    silence = exception.what();
  }
  bool answers = silence.empty();
  alarm_->manager_answers(answers);
  if (!answers) manager_ = CosLoadBalancing::LoadManager::_nil();
  if (answers == answers_) return answers;
  answers_ = answers;
  log(answers ? "the manager answers" : "no answer of the manager, trying on: " + silence);
  return answers;
}

void Location::Keeper::register_all() {
  bool alert, monitor;
  {
    std::lock_guard<std::mutex> guard(lock_);
    alert = !alert_known_;
    monitor = monitor_wanted_ && !monitor_known_;
  }
  // The members last: nobody should be bound to what cannot tell its load.
  bool alert_put = alert && put_alert();
  bool monitor_put = monitor && put_monitor();
  {
    std::lock_guard<std::mutex> guard(lock_);
    alert_known_ = alert_known_ || alert_put;
    monitor_known_ = monitor_known_ || monitor_put;
  }
  for (const MemberPtr &member : members()) {
    if (member->unwanted) take(member);
    else if (!member->known) put(member);
  }
}

void Location::Keeper::check_all() {
  bool monitor_known;
  {
    std::lock_guard<std::mutex> guard(lock_);
    monitor_known = monitor_known_;
  }
  bool alert = knows_alert();
  // A manager that has lost it has no alert on.
  if (!alert) alarm_->alert(false);
  monitor_known = monitor_known && knows_monitor();
  {
    std::lock_guard<std::mutex> guard(lock_);
    alert_known_ = alert;
    monitor_known_ = monitor_known;
  }
  for (const MemberPtr &member : members()) {
    // What a factory has made is the manager's.
    if (member->created || knows(*member)) continue;
    std::lock_guard<std::mutex> guard(lock_);
    member->known = false;
  }
}

void Location::Keeper::push() { manager_->push_loads(name_, sampler_->sample()); }

void Location::Keeper::take_all() {
  for (const MemberPtr &member : members()) take(member);
  if (knows_alert()) manager_->remove_load_alert(name_);
  if (monitor_wanted_ && knows_monitor()) manager_->remove_load_monitor(name_);
}

bool Location::Keeper::put_alert() {
  CosLoadBalancing::LoadAlert_var alert =
      CosLoadBalancing::LoadAlert::_unchecked_narrow(alert_.reference);
  try {
    manager_->register_load_alert(name_, alert);
    return true;
  } catch (const CosLoadBalancing::LoadAlertAlreadyPresent &) {
  } catch (const CosLoadBalancing::LoadAlertNotAdded &) {
    complain("the manager does not take the load alert");
    return false;
  }
  if (knows_alert()) return true;
  try {
    CORBA::Object_var other = manager_->get_load_alert(name_);
    if (!stale(other, "load alert")) return false;
    manager_->remove_load_alert(name_);
    manager_->register_load_alert(name_, alert);
    return true;
  } catch (const CORBA::UserException &) {
    // Somebody else is at it too; the next try tells.
    return false;
  }
}

bool Location::Keeper::put_monitor() {
  CosLoadBalancing::LoadMonitor_var monitor =
      CosLoadBalancing::LoadMonitor::_unchecked_narrow(monitor_.reference);
  try {
    manager_->register_load_monitor(name_, monitor);
    return true;
  } catch (const CosLoadBalancing::MonitorAlreadyPresent &) {
  }
  if (knows_monitor()) return true;
  try {
    CORBA::Object_var other = manager_->get_load_monitor(name_);
    if (!stale(other, "load monitor")) return false;
    manager_->remove_load_monitor(name_);
    manager_->register_load_monitor(name_, monitor);
    return true;
  } catch (const CORBA::UserException &) {
    return false;
  }
}

void Location::Keeper::put(const MemberPtr &member) {
  CORBA::Object_var group = member->created ? find(*member) : join(*member);
  if (CORBA::is_nil(group)) return;
  std::lock_guard<std::mutex> guard(lock_);
  member->known = true;
  member->group = CORBA::Object::_duplicate(group);
  if (!member->unwanted) gate::set_group(member->key, group);
}

void Location::Keeper::take(const MemberPtr &member) {
  if (!member->created && knows(*member)) {
    try {
      CORBA::Object_var group = manager_->remove_member(member->group, name_);
    } catch (const CORBA::UserException &) {
      // It is not there: good.
    }
  }
  std::lock_guard<std::mutex> guard(lock_);
  member->known = false;
  if (!member->unwanted) return;
  members_.erase(std::remove(members_.begin(), members_.end(), member), members_.end());
}

// Makes it a member; its group, or nil if that cannot be.
CORBA::Object_ptr Location::Keeper::join(const Member &member) {
  try {
    return manager_->add_member(member.group, name_, member.object);
  } catch (const PortableGroup::MemberAlreadyPresent &) {
  } catch (const PortableGroup::ObjectGroupNotFound &) {
    complain("the manager does not know the group of a member");
    return CORBA::Object::_nil();
  } catch (const PortableGroup::ObjectNotAdded &) {
    complain("the manager does not take a member: it is not of the group's type, or cannot be "
             "reached from there");
    return CORBA::Object::_nil();
  }
  try {
    CORBA::Object_var other = manager_->get_member_ref(member.group, name_);
    if (other->_is_equivalent(member.object)) return manager_->get_object_group_ref(member.group);
    if (!stale(other, "member")) return CORBA::Object::_nil();
    CORBA::Object_var group = manager_->remove_member(member.group, name_);
    return manager_->add_member(member.group, name_, member.object);
  } catch (const CORBA::UserException &) {
    return CORBA::Object::_nil();
  }
}

// The group to which the manager has added an object of a factory; nil if it has not yet.
CORBA::Object_ptr Location::Keeper::find(const Member &member) {
  PortableGroup::ObjectGroups_var groups = manager_->groups_at_location(name_);
  for (CORBA::ULong i = 0; i < groups->length(); i++) {
    CORBA::Object_ptr group = groups[i];
    try {
      CORBA::Object_var known = manager_->get_member_ref(group, name_);
      if (known->_is_equivalent(member.object)) return CORBA::Object::_duplicate(group);
    } catch (const CORBA::UserException &) {
      // Another one, or one that was just removed.
    }
  }
  return CORBA::Object::_nil();
}

bool Location::Keeper::knows_alert() {
  try {
    CORBA::Object_var known = manager_->get_load_alert(name_);
    return known->_is_equivalent(alert_.reference);
  } catch (const CosLoadBalancing::LoadAlertNotFound &) {
    return false;
  }
}

bool Location::Keeper::knows_monitor() {
  try {
    CORBA::Object_var known = manager_->get_load_monitor(name_);
    return known->_is_equivalent(monitor_.reference);
  } catch (const CosLoadBalancing::LocationNotFound &) {
    return false;
  }
}

bool Location::Keeper::knows(const Member &member) {
  try {
    CORBA::Object_var known = manager_->get_member_ref(member.group, name_);
    return known->_is_equivalent(member.object);
  } catch (const CORBA::UserException &) {
    return false;
  }
}

// Whether what stands in our place is left over from a process that has gone. One that
// lives has the same location by mistake, and is left where it is.
bool Location::Keeper::stale(CORBA::Object_ptr other, const char *what) {
  if (CORBA::is_nil(other)) return true;
  CORBA::Object_var object = impatient<CORBA::Object>(other);
  try {
    if (object->_non_existent()) return true;
  } catch (const CORBA::SystemException &) {
    return true;
  }
  complain(std::string("another process that lives has a ") + what +
           " here: give each process a location of its own");
  return false;
}

// The same reference with a time limit for calls, and without the application's handlers of
// exceptions: theirs may try for ever. (A limit for the thread's calls would need the ORB's
// option supportPerThreadTimeOut.)
template <class Interface>
typename Interface::_ptr_type Location::Keeper::impatient(CORBA::Object_ptr object) const {
  CORBA::String_var text = orb_->object_to_string(object);
  CORBA::Object_var copy = orb_->string_to_object(text);
  typename Interface::_var_type own = Interface::_unchecked_narrow(copy);
  omniORB::setClientCallTimeout(own, CORBA::ULong(options_.timeout.count()));
  omniORB::installTransientExceptionHandler(own, nullptr, never);
  omniORB::installCommFailureExceptionHandler(own, nullptr, never);
  omniORB::installTimeoutExceptionHandler(own, nullptr, never);
  return own._retn();
}

} // namespace evenkeel
