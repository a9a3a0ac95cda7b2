// A forwarding servant as one writes it with an ORB: each call is made again, by a stub, at
// the next of its members. What `corba_relay` compares the balancer's relay with.
//
//   relay member            a member
//   relay forward MEMBERS...   (stringified references)
//
// The reference is written to standard output.
#include <atomic>
#include <iostream>
#include <string>
#include <vector>

#include "member.hh"

namespace {

class Member : public POA_Bench::Member {
 public:
  CORBA::Boolean is_prime(CORBA::ULong number) override {
    for (CORBA::ULong divisor = 2; divisor * divisor <= number; ++divisor) {
      if (number % divisor == 0) return false;
    }
    return number > 1;
  }
};

class Forwarder : public POA_Bench::Member {
 public:
  explicit Forwarder(std::vector<Bench::Member_var> members) : members_(std::move(members)) {}

  CORBA::Boolean is_prime(CORBA::ULong number) override {
    const size_t next = next_.fetch_add(1, std::memory_order_relaxed) % members_.size();
    return members_[next]->is_prime(number);
  }

 private:
  const std::vector<Bench::Member_var> members_;
  std::atomic<size_t> next_{0};
};

}  // namespace

int main(int argc, char** argv) try {
  CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "";
  std::vector<Bench::Member_var> members;
  for (int i = 2; i < argc; ++i) {
    CORBA::Object_var object = orb->string_to_object(argv[i]);
    members.push_back(Bench::Member::_unchecked_narrow(object));
  }
  PortableServer::Servant servant = nullptr;
  if (mode == "member" && members.empty()) {
    servant = new Member;
  } else if (mode == "forward" && !members.empty()) {
    servant = new Forwarder(std::move(members));
  } else {
    std::cerr << "usage: relay member | relay forward MEMBERS...\n";
    return 2;
  }
  CORBA::Object_var root_object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var root = PortableServer::POA::_narrow(root_object);
  PortableServer::ObjectId_var id = root->activate_object(servant);
  CORBA::Object_var object = root->id_to_reference(id);
  CORBA::String_var ior = orb->object_to_string(object);
  PortableServer::POAManager_var manager = root->the_POAManager();
  manager->activate();
  std::cout << ior.in() << std::endl;
  orb->run();
  return 0;
} catch (const CORBA::Exception& error) {
  std::cerr << "relay: " << error._name() << "\n";
  return 1;
}
