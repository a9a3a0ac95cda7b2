// Servers on omniORB as members of groups that Evenkeel balances.
//
//   evenkeel::Location location(orb, "host1");
//   location.add_member(group, member);
//   location.monitor(evenkeel::Loads().host_cpu().requests_per_second());
//   …
//   location.leave(std::chrono::seconds(2));
//
// Nothing here waits for the manager, `wait` and `leave` apart: a thread of the location's
// own registers what there is, replaces what an earlier process has left there, and keeps
// trying while the manager is down.
#ifndef EVENKEEL_OMNIORB_H
#define EVENKEEL_OMNIORB_H

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CosLoadBalancing.hh>

namespace evenkeel {

// Which requests count as the load of a location.
enum class Requests {
  // Those to its members.
  of_members,
  // Those to any object of the process that is no member at another location. For factories,
  // whose load is that of the objects they have made.
  of_process
};

// What a location's monitor tells. A location measures what is asked for and nothing else.
class Loads {
public:
  typedef std::function<float()> Function;

  // Share of the host's CPU time that is used, 0 to 1.
  Loads &host_cpu(CosLoadBalancing::LoadId id = CosLoadBalancing::LoadAverage);
  // Share of the CPU time which this process may have that it uses, 0 to 1: of those CPUs
  // that it may run on.
  Loads &process_cpu(CosLoadBalancing::LoadId id = CosLoadBalancing::LoadAverage);
  // Share of the host's memory in use, 0 to 1, without what the kernel can take back.
  Loads &host_memory(CosLoadBalancing::LoadId id = CosLoadBalancing::Memory);
  // Share of time in which the busiest disk of the host had something to do, 0 to 1.
  Loads &host_disk(CosLoadBalancing::LoadId id = CosLoadBalancing::Disk);
  // Share of the busiest network interface's capacity in use, in its busier direction, 0 to 1.
  // `capacity` is in bits per second each way; 0 takes the speed that each interface tells,
  // which those of virtual machines do not: without any, the load is left out.
  // Throws std::invalid_argument for a capacity below 0.
  Loads &host_network(double capacity = 0, CosLoadBalancing::LoadId id = CosLoadBalancing::Network);
  // Requests that arrived per second. Those that were sent back are not counted.
  Loads &requests_per_second(Requests which = Requests::of_members,
                             CosLoadBalancing::LoadId id = CosLoadBalancing::RequestsPerSecond);
  // Requests that wait for their answer. Oneways do not: they are not counted.
  Loads &in_flight(Requests which = Requests::of_members, CosLoadBalancing::LoadId id = 17);
  // Any quantity. It may be called by several threads, and should not block. An exception
  // or a value that is not finite leaves this load out.
  Loads &custom(CosLoadBalancing::LoadId id, Function load);

private:
  friend class Sampler;
  enum class Kind { host_cpu, process_cpu, requests_per_second, in_flight, custom };
  struct Source {
    Kind kind;
    CosLoadBalancing::LoadId id;
    Requests which;
    Function load;
  };
  std::vector<Source> sources_;
};

struct Options {
  // Where the manager is: any reference that `string_to_object` takes, `file:///PATH` of a
  // file that holds one (read anew at each try), or the name of an initial reference.
  std::string manager = "LoadManager";
  // How long one call to the manager may take.
  std::chrono::milliseconds timeout = std::chrono::seconds(2);
  // Time between two tries while the manager does not answer.
  std::chrono::milliseconds retry = std::chrono::seconds(1);
  // How often it is asked whether it still knows what was registered: a manager may have
  // lost its state.
  std::chrono::milliseconds check = std::chrono::seconds(10);
  // What an administrator should know, a line each; standard error if there is none.
  std::function<void(const std::string &)> log;
};

// A location name as the manager has it: components joined by `/`, a kind after `.`, and
// `\` before each of these three where it is part of a name. `host1` is one component.
// Throws std::invalid_argument for an empty name and an unfinished escape.
CosNaming::Name location_name(const std::string &text);

// The manager, from what `Options::manager` may be. Not asked whether it is there.
// Throws what string_to_object and resolve_initial_references throw, and
// std::runtime_error for a file that cannot be read.
CosLoadBalancing::LoadManager_ptr manager(CORBA::ORB_ptr orb,
                                          const std::string &reference = "LoadManager");

// Properties, to which `set` adds.
void set(PortableGroup::Properties &properties, const char *id, const CORBA::Any &value);

// A new group whose members come by themselves, with the type id of its members; `strategy`
// is RoundRobin, LeastLoaded, … or null for the manager's default. `name` is what
// administrators see, or null. Further properties go to the manager as they are.
// Throws what `GenericFactory::create_object` throws.
CORBA::Object_ptr create_group(CosLoadBalancing::LoadManager_ptr manager, const char *type_id,
                               const char *name, const char *strategy,
                               PortableGroup::Properties properties = PortableGroup::Properties());

// A location with its members in this process, its alert and its monitor.
//
// While the alert is on, a request to one of the members is answered with LOCATION_FORWARD
// to its group, so that the client is bound anew. Left alone are oneways, which cannot be
// sent back, `_is_a`, `_non_existent`, calls from within the process, and objects that are
// no members, such as the sessions that a member has opened.
class Location {
public:
  // `name` as in `location_name`. Each process has its own: the manager knows one alert and
  // one monitor at a location. Activates objects of its own; the ORB must outlive this.
  Location(CORBA::ORB_ptr orb, const std::string &name, const Options &options = Options());
  // Leaves if that was not done, and waits at most for one call's timeout.
  ~Location();
  Location(const Location &) = delete;
  Location &operator=(const Location &) = delete;

  // Adds an object of this process to a group. An object is in one group, so that it is
  // known to which its clients are sent back: for a second group activate the servant a
  // second time, under another id.
  // Throws BAD_PARAM if either is nil, and std::logic_error if it is a member already.
  void add_member(CORBA::Object_ptr group, CORBA::Object_ptr member);

  // An object that a GenericFactory of this location has made: the manager adds it to the
  // group by itself, and is asked for the group. Until it is known, clients are sent back
  // with TRANSIENT. Throws as `add_member`.
  void add_created(CORBA::Object_ptr member);

  // A member no more. It is served as before, and no longer sent back.
  void remove_member(CORBA::Object_ptr member);

  // Tells these loads: when asked, or every `push` by itself. Once per location.
  // Throws std::logic_error the second time, and if another location counts the requests
  // of the process.
  void monitor(const Loads &loads,
               std::chrono::milliseconds push = std::chrono::milliseconds::zero());

  // Whether all that was added is registered; waits until it is, or for that long.
  bool wait(std::chrono::milliseconds limit);

  // Takes members, alert and monitor out, in this order. Then, for `drain`, clients that
  // are still bound are sent back to the group as by an alert. Gives up at the first call
  // that the manager does not answer.
  void leave(std::chrono::milliseconds drain = std::chrono::milliseconds::zero());

  // Whether the manager has an alert on.
  bool alerted() const;

  // What the monitor would tell now; empty without one.
  CosLoadBalancing::LoadList loads() const;

private:
  class Keeper;
  std::unique_ptr<Keeper> keeper_;
};

} // namespace evenkeel

#endif
