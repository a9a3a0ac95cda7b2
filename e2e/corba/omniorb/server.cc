// A server.
//
//   peer server NAME
//     Prints `IOR:…` of a Peer of that name, `IOR:…` of a SessionFactory, and `ready`. Then
//     it does what the lines on standard input say, and answers each with a line. It ends
//     with its standard input.
//
// Commands: `served` (how many requests its objects have answered), `peer NAME` (one more;
// its reference), and those of balancing.cc.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "balancing.h"
#include "server.h"

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

PortableServer::POA_var poa;

std::string answer(CORBA::ORB_ptr orb, Balancing &balancing,
                   const std::vector<std::string> &words) {
  try {
    if (words.at(0) == "served") return std::to_string(served);
    if (words[0] != "peer") return balancing.answer(words);
    CORBA::Object_var reference = new_peer(words.at(1));
    CORBA::String_var text = orb->object_to_string(reference);
    return text.in();
  } catch (const CORBA::Exception &exception) {
    return told(exception);
  } catch (const std::logic_error &exception) {
    return std::string("error ") + exception.what();
  }
}

} // namespace

CORBA::Object_ptr activate(PortableServer::ServantBase *servant) {
  PortableServer::ServantBase_var held(servant);
  PortableServer::ObjectId_var id = poa->activate_object(servant);
  return poa->id_to_reference(id);
}

CORBA::Object_ptr new_peer(const std::string &name) { return activate(new Peer(name)); }

void end_peer(CORBA::Object_ptr peer) {
  PortableServer::ObjectId_var id = poa->reference_to_id(peer);
  poa->deactivate_object(id);
}

int serve(CORBA::ORB_ptr orb, const std::vector<std::string> &arguments) {
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  poa = PortableServer::POA::_narrow(object);
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
  CORBA::Object_var peer = new_peer(arguments.at(0));
  CORBA::Object_var sessions = activate(new SessionFactory(arguments.at(0)));
  for (CORBA::Object_ptr mine : {peer.in(), sessions.in()}) {
    CORBA::String_var text = orb->object_to_string(mine);
    say(text.in());
  }
  say("ready");
  Balancing balancing(orb, peer);
  for (std::string line; std::getline(std::cin, line);)
    say(answer(orb, balancing, words(line)));
  return 0;
}
