// A server.
//
//   peer server NAME
//     Prints `IOR:…` of a Peer of that name, `IOR:…` of a SessionFactory, and `ready`. Then
//     it does what the lines on standard input say, and answers each with a line. It ends
//     with its standard input.
//
// Commands: `served` (how many requests its objects have answered), `peer NAME` (one more;
// its reference).
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "peer.h"

namespace {

std::atomic<long> served(0);
std::atomic<long> posted_sum(0);

bool prime(CORBA::ULong number) {
  if (number < 2) return false;
  for (CORBA::ULong i = 2; CORBA::ULongLong(i) * i <= number; i++)
    if (number % i == 0) return false;
  return true;
}

class Peer : public POA_PeerTest::Peer, public PortableServer::RefCountServantBase {
public:
  explicit Peer(const std::string &name) : name_(name), setting_(0) {}
  char *who() {
    served++;
    return CORBA::string_dup(name_.c_str());
  }
  CORBA::Long add(CORBA::Long a, CORBA::Long b) {
    served++;
    return a + b;
  }
  PeerTest::Octets *blob(const PeerTest::Octets &data) {
    served++;
    return new PeerTest::Octets(data);
  }
  CORBA::WChar *wide(const CORBA::WChar *text) {
    served++;
    return CORBA::wstring_dup(text);
  }
  CORBA::Any *reflect(const CORBA::Any &value) {
    served++;
    return new CORBA::Any(value);
  }
  void post(CORBA::Long value) {
    served++;
    posted_sum += value;
  }
  CORBA::Long posted() {
    served++;
    return CORBA::Long(posted_sum);
  }
  void fail(CORBA::Long kind) {
    served++;
    switch (kind) {
    case 0: throw PeerTest::Refused("as asked", 42);
    case 1: throw CORBA::TRANSIENT(7, CORBA::COMPLETED_NO);
    case 2: throw CORBA::COMM_FAILURE(0, CORBA::COMPLETED_MAYBE);
    case 3: throw CORBA::NO_IMPLEMENT(9, CORBA::COMPLETED_YES);
    case 4: throw CORBA::OBJECT_NOT_EXIST(0, CORBA::COMPLETED_NO);
    case 5: throw CORBA::OBJ_ADAPTER(0, CORBA::COMPLETED_NO);
    case 6: throw CORBA::NO_RESPONSE(0, CORBA::COMPLETED_NO);
    }
  }
  void sleep(CORBA::Long ms) {
    served++;
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }
  CORBA::Boolean is_prime(CORBA::ULong number) {
    served++;
    return prime(number);
  }
  CORBA::Long setting() {
    served++;
    return setting_;
  }
  void setting(CORBA::Long value) {
    served++;
    setting_ = value;
  }

private:
  const std::string name_;
  std::atomic<CORBA::Long> setting_;
};

class Session : public POA_PeerTest::Session, public PortableServer::RefCountServantBase {
public:
  explicit Session(const std::string &name) : name_(name), count_(0) {}
  char *who() {
    served++;
    count_++;
    return CORBA::string_dup(name_.c_str());
  }
  CORBA::Long count() {
    served++;
    return ++count_;
  }
  void close() {
    served++;
    PortableServer::POA_var poa = _default_POA();
    PortableServer::ObjectId_var id = poa->servant_to_id(this);
    poa->deactivate_object(id);
  }

private:
  const std::string name_;
  std::atomic<CORBA::Long> count_;
};

class SessionFactory : public POA_PeerTest::SessionFactory,
                       public PortableServer::RefCountServantBase {
public:
  explicit SessionFactory(const std::string &name) : name_(name) {}
  PeerTest::Session_ptr open(const char *client) {
    served++;
    PortableServer::Servant_var<Session> session(new Session(name_ + "/" + client));
    return session->_this();
  }

private:
  const std::string name_;
};

class Server {
public:
  explicit Server(CORBA::ORB_ptr orb) : orb_(CORBA::ORB::_duplicate(orb)) {
    CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
    poa_ = PortableServer::POA::_narrow(object);
    PortableServer::POAManager_var manager = poa_->the_POAManager();
    manager->activate();
  }

  // Activates a servant, which is kept by its POA.
  template <class Servant> std::string activate(Servant *servant) {
    PortableServer::Servant_var<Servant> held(servant);
    CORBA::Object_var reference = servant->_this();
    return text(reference);
  }

  std::string answer(const std::vector<std::string> &words) {
    const std::string &command = words.at(0);
    if (command == "served") return std::to_string(served);
    if (command == "peer") return activate(new Peer(words.at(1)));
    return "unknown command " + command;
  }

private:
  CORBA::ORB_var orb_;
  PortableServer::POA_var poa_;

  std::string text(CORBA::Object_ptr object) {
    CORBA::String_var text = orb_->object_to_string(object);
    return text.in();
  }
};

} // namespace

int serve(CORBA::ORB_ptr orb, const std::vector<std::string> &arguments) {
  Server server(orb);
  say(server.activate(new Peer(arguments.at(0))));
  say(server.activate(new SessionFactory(arguments.at(0))));
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    try {
      say(server.answer(words(line)));
    } catch (const CORBA::Exception &exception) {
      say(told(exception));
    }
  }
  return 0;
}
