// A member locator as one writes it with an ORB: a servant locator that forwards every
// request to the next of its members. What `bench locate` compares the balancer with.
//
//   forwarder MEMBERS...   (stringified references)
//
// The reference of the group is written to standard output.
#include <omniORB4/CORBA.h>

#include <atomic>
#include <iostream>
#include <vector>

namespace {

class Locator : public PortableServer::ServantLocator,
                public virtual CORBA::LocalObject {
 public:
  explicit Locator(std::vector<CORBA::Object_var> members) : members_(std::move(members)) {}

  PortableServer::Servant preinvoke(const PortableServer::ObjectId&, PortableServer::POA_ptr,
                                    const char*, void*&) override {
    const size_t next = next_.fetch_add(1, std::memory_order_relaxed) % members_.size();
    throw PortableServer::ForwardRequest(members_[next]);
  }

  void postinvoke(const PortableServer::ObjectId&, PortableServer::POA_ptr, const char*, void*,
                  PortableServer::Servant) override {}

 private:
  const std::vector<CORBA::Object_var> members_;
  std::atomic<size_t> next_{0};
};

}  // namespace

int main(int argc, char** argv) try {
  CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
  std::vector<CORBA::Object_var> members;
  for (int i = 1; i < argc; ++i) members.push_back(orb->string_to_object(argv[i]));
  if (members.empty()) {
    std::cerr << "usage: forwarder MEMBERS...\n";
    return 2;
  }
  CORBA::Object_var root_object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var root = PortableServer::POA::_narrow(root_object);
  CORBA::PolicyList policies;
  policies.length(4);
  policies[0] = root->create_lifespan_policy(PortableServer::PERSISTENT);
  policies[1] = root->create_request_processing_policy(PortableServer::USE_SERVANT_MANAGER);
  policies[2] = root->create_servant_retention_policy(PortableServer::NON_RETAIN);
  policies[3] = root->create_id_assignment_policy(PortableServer::USER_ID);
  PortableServer::POAManager_var manager = root->the_POAManager();
  PortableServer::POA_var poa = root->create_POA("forwarder", manager, policies);
  PortableServer::ServantLocator_var locator = new Locator(std::move(members));
  poa->set_servant_manager(locator);
  PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId("group");
  CORBA::Object_var group = poa->create_reference_with_id(id, "IDL:Bench/Member:1.0");
  CORBA::String_var ior = orb->object_to_string(group);
  std::cout << ior.in() << std::endl;
  manager->activate();
  orb->run();
  return 0;
} catch (const CORBA::Exception& error) {
  std::cerr << "forwarder: " << error._name() << "\n";
  return 1;
}
