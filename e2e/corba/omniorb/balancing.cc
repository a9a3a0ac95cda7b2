// What the server does with the load balancing service:
//
//   location NAME [manager=… retry=MS check=MS timeout=MS]   a new location
//   at NAME member GROUP [REFERENCE]      its Peer, or that object, becomes a member
//   at NAME created REFERENCE             made by a factory
//   at NAME remove [REFERENCE]
//   at NAME monitor PUSH-MS SOURCE…       cpu, process, requests, process_requests, in_flight,
//                                         process_in_flight, custom=ID
//   at NAME wait MS, alerted, loads, leave MS
//   load ID VALUE                         what `custom` tells; `load ID` throws
//   factory NAME [LOCATION]               a GenericFactory of Peers that are called NAME-1, …
//   made, deleted, criteria               the names of what factories have made and deleted, and
//                                         what they were told the last time
//   strategy NAME                         a Strategy that chooses the first of the locations
//   manager REFERENCE                     whom the commands of manager.cc go to; any other
#include <atomic>
#include <mutex>
#include <stdexcept>

#include <evenkeel/omniorb.h>

#include "balancing.h"
#include "server.h"

namespace {

std::mutex loads_lock;
std::map<CosLoadBalancing::LoadId, float> loads;

float load(CosLoadBalancing::LoadId id) {
  std::lock_guard<std::mutex> guard(loads_lock);
  auto found = loads.find(id);
  if (found == loads.end()) throw std::runtime_error("there is none");
  return found->second;
}

typedef std::shared_ptr<evenkeel::Location> LocationPtr;

// Of all factories.
std::mutex made_lock;
std::string made, deleted, criteria_told;

void note(std::string &list, const std::string &name) {
  list += (list.empty() ? "" : " ") + name;
}

class Factory : public POA_PortableGroup::GenericFactory {
public:
  Factory(const std::string &name, LocationPtr location) : name_(name), location_(location) {}

  CORBA::Object_ptr create_object(const char *type_id, const PortableGroup::Criteria &criteria,
                                  PortableGroup::GenericFactory::FactoryCreationId_out id) override {
    std::lock_guard<std::mutex> guard(lock_);
    if (std::string(type_id) != "IDL:evenkeel.org/PeerTest/Peer:1.0")
      throw PortableGroup::NoFactory(CosNaming::Name(), type_id);
    CORBA::ULong number = ++number_;
    CORBA::Object_var made = new_peer(name_ + "-" + std::to_string(number));
    made_[number] = CORBA::Object::_duplicate(made);
    id = new CORBA::Any;
    *id <<= number;
    if (location_) location_->add_created(made);
    std::lock_guard<std::mutex> guard_of_made(made_lock);
    note(::made, name_ + "-" + std::to_string(number));
    criteria_told = properties_text(criteria);
    return made._retn();
  }

  void delete_object(const PortableGroup::GenericFactory::FactoryCreationId &id) override {
    std::lock_guard<std::mutex> guard(lock_);
    CORBA::ULong number;
    auto found = (id >>= number) ? made_.find(number) : made_.end();
    if (found == made_.end()) throw PortableGroup::ObjectNotFound();
    if (location_) location_->remove_member(found->second);
    end_peer(found->second);
    made_.erase(found);
    std::lock_guard<std::mutex> guard_of_made(made_lock);
    note(deleted, name_ + "-" + std::to_string(number));
  }

private:
  const std::string name_;
  const LocationPtr location_;
  std::mutex lock_;
  CORBA::ULong number_ = 0;
  std::map<CORBA::ULong, CORBA::Object_var> made_;
};

// Always the member at the first location; counts what it is asked.
class Strategy : public POA_CosLoadBalancing::Strategy {
public:
  explicit Strategy(const std::string &name) : name_(name) {}
  char *name() override { return CORBA::string_dup(name_.c_str()); }
  PortableGroup::Properties *get_properties() override { return new PortableGroup::Properties; }
  void push_loads(const CosNaming::Name &, const CosLoadBalancing::LoadList &) override {
    throw CosLoadBalancing::StrategyNotAdaptive();
  }
  CosLoadBalancing::LoadList *get_loads(CosLoadBalancing::LoadManager_ptr manager,
                                        const CosNaming::Name &location) override {
    return manager->get_loads(location);
  }
  CORBA::Object_ptr next_member(CORBA::Object_ptr group,
                                CosLoadBalancing::LoadManager_ptr manager) override {
    PortableGroup::Locations_var locations = manager->locations_of_members(group);
    if (locations->length() == 0) throw PortableGroup::MemberNotFound();
    return manager->get_member_ref(group, locations[0]);
  }
  void analyze_loads(CORBA::Object_ptr, CosLoadBalancing::LoadManager_ptr) override {}

private:
  const std::string name_;
};

evenkeel::Options options(const std::vector<std::string> &words) {
  evenkeel::Options options;
  for (size_t i = 2; i < words.size(); i++) {
    size_t at = words[i].find('=');
    std::string key = words[i].substr(0, at), value = words[i].substr(at + 1);
    if (key == "manager") options.manager = value;
    else if (key == "retry") options.retry = std::chrono::milliseconds(number(value));
    else if (key == "check") options.check = std::chrono::milliseconds(number(value));
    else if (key == "timeout") options.timeout = std::chrono::milliseconds(number(value));
  }
  return options;
}

evenkeel::Loads sources(const std::vector<std::string> &words, size_t from) {
  evenkeel::Loads all;
  const auto of_process = evenkeel::Requests::of_process;
  for (size_t i = from; i < words.size(); i++) {
    const std::string &word = words[i];
    if (word == "cpu") all.host_cpu();
    else if (word == "memory") all.host_memory();
    else if (word == "disk") all.host_disk();
    else if (word == "network") all.host_network();
    else if (word.rfind("network=", 0) == 0) all.host_network(number(word.substr(8)));
    else if (word == "process") all.process_cpu(16);
    else if (word == "requests") all.requests_per_second();
    else if (word == "process_requests") all.requests_per_second(of_process);
    else if (word == "in_flight") all.in_flight();
    else if (word == "process_in_flight") all.in_flight(of_process);
    else {
      CosLoadBalancing::LoadId id = number(word.substr(word.find('=') + 1));
      all.custom(id, [id] { return load(id); });
    }
  }
  return all;
}

} // namespace

Balancing::Balancing(CORBA::ORB_ptr orb, CORBA::Object_ptr peer)
    : orb_(CORBA::ORB::_duplicate(orb)), peer_(CORBA::Object::_duplicate(peer)) {}

Balancing::~Balancing() {}

std::string Balancing::answer(const std::vector<std::string> &words) {
  const std::string &command = words.at(0);
  if (command == "location") {
    locations_[words.at(1)] =
        std::make_shared<evenkeel::Location>(orb_, words[1], options(words));
  } else if (command == "at") {
    return at(*locations_.at(words.at(1)), words);
  } else if (command == "load") {
    std::lock_guard<std::mutex> guard(loads_lock);
    if (words.size() > 2) loads[number(words.at(1))] = std::stof(words[2]);
    else loads.erase(number(words.at(1)));
  } else if (command == "factory") {
    LocationPtr location = words.size() > 2 ? locations_.at(words[2]) : nullptr;
    CORBA::Object_var factory = activate(new Factory(words.at(1), location));
    return text(factory);
  } else if (command == "made" || command == "deleted" || command == "criteria") {
    std::lock_guard<std::mutex> guard(made_lock);
    return command == "made" ? made : command == "deleted" ? deleted : criteria_told;
  } else if (command == "strategy") {
    CORBA::Object_var strategy = activate(new Strategy(words.at(1)));
    return text(strategy);
  } else if (command == "manager") {
    manager_.reset(new Manager(orb_, words.at(1)));
  } else if (manager_) {
    return manager_->answer(words);
  } else {
    return "unknown command " + command;
  }
  return command;
}

std::string Balancing::at(evenkeel::Location &location, const std::vector<std::string> &words) {
  const std::string &command = words.at(2);
  if (command == "member") {
    CORBA::Object_var group = orb_->string_to_object(words.at(3).c_str());
    CORBA::Object_var member = object(words, 4);
    location.add_member(group, member);
  } else if (command == "created") {
    CORBA::Object_var member = object(words, 3);
    location.add_created(member);
  } else if (command == "remove") {
    CORBA::Object_var member = object(words, 3);
    location.remove_member(member);
  } else if (command == "monitor") {
    location.monitor(sources(words, 4), std::chrono::milliseconds(number(words.at(3))));
  } else if (command == "wait") {
    return location.wait(std::chrono::milliseconds(number(words.at(3)))) ? "yes" : "no";
  } else if (command == "alerted") {
    return location.alerted() ? "yes" : "no";
  } else if (command == "loads") {
    CosLoadBalancing::LoadList loads = location.loads();
    std::ostringstream out;
    for (CORBA::ULong i = 0; i < loads.length(); i++)
      out << (i ? " " : "") << loads[i].id << '=' << loads[i].value;
    return out.str();
  } else if (command == "leave") {
    location.leave(std::chrono::milliseconds(number(words.at(3))));
  } else {
    return "unknown command at a location: " + command;
  }
  return command;
}

CORBA::Object_ptr Balancing::object(const std::vector<std::string> &words, size_t index) {
  if (words.size() <= index) return CORBA::Object::_duplicate(peer_);
  return orb_->string_to_object(words[index].c_str());
}

std::string Balancing::text(CORBA::Object_ptr object) {
  CORBA::String_var text = orb_->object_to_string(object);
  return text.in();
}
