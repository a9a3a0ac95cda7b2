// A server of sessions, which joins the group at a location:
//
//   server LOCATION stock.ior -ORBInitRef LoadManager=corbaloc:iiop:HOST:PORT/LoadManager
//
// Its load is how many sessions are open. On SIGTERM or SIGINT it leaves, sends new clients
// to the other servers, and ends when its last session is closed.
#include <atomic>
#include <csignal>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <evenkeel/omniorb.h>

#include "stock.hh"

namespace {

std::atomic<int> sessions(0);

double price(const std::string &symbol) {
  static const std::map<std::string, double> PRICES = {
      {"ACME", 12.5}, {"KEEL", 48.0}, {"MAST", 7.25}, {"SAIL", 103.1}};
  auto found = PRICES.find(symbol);
  if (found == PRICES.end()) throw Stock::UnknownSymbol();
  return found->second;
}

class Session : public POA_Stock::Session {
public:
  Session(const std::string &server, double cash) : server_(server), cash_(cash) { sessions++; }
  ~Session() { sessions--; }

  char *server() override { return CORBA::string_dup(server_.c_str()); }

  double quote(const char *symbol) override { return price(symbol); }

  double trade(const char *symbol, CORBA::Long shares) override {
    double cost = price(symbol) * shares;
    std::lock_guard<std::mutex> guard(lock_);
    if (cost > cash_ || CORBA::LongLong(owned_[symbol]) + shares < 0) throw Stock::NotEnough();
    owned_[symbol] += shares;
    return cash_ -= cost;
  }

  void close() override {
    PortableServer::POA_var poa = _default_POA();
    PortableServer::ObjectId_var id = poa->servant_to_id(this);
    poa->deactivate_object(id);
  }

private:
  const std::string server_;
  std::mutex lock_;
  double cash_;
  std::map<std::string, CORBA::Long> owned_;
};

class SessionFactory : public POA_Stock::SessionFactory {
public:
  explicit SessionFactory(const std::string &server) : server_(server) {}

  Stock::Session_ptr open(const char *trader, double cash) override {
    std::cout << server_ << ": a session for " << trader << std::endl;
    PortableServer::Servant_var<Session> session(new Session(server_, cash));
    return session->_this();
  }

private:
  const std::string server_;
};

std::string read(const char *path) {
  std::string text;
  std::ifstream(path) >> text;
  return text;
}

} // namespace

int main(int argc, char **argv) {
  // Signals are for the main thread, which waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    if (argc != 3) {
      std::cerr << "usage: server LOCATION FILE -ORBInitRef LoadManager=…" << std::endl;
      return 2;
    }
    CORBA::Object_var root = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(root);
    PortableServer::Servant_var<SessionFactory> servant(new SessionFactory(argv[1]));
    Stock::SessionFactory_var factory = servant->_this();

    CORBA::Object_var group = orb->string_to_object(read(argv[2]).c_str());
    evenkeel::Location location(orb, argv[1]);
    PortableServer::POAManager_var manager = poa->the_POAManager();
    manager->activate();
    location.monitor(evenkeel::Loads().custom(1000, [] { return float(sessions); }),
                     std::chrono::seconds(1));
    location.add_member(group, factory);
    if (location.wait(std::chrono::seconds(10)))
      std::cout << argv[1] << ": in the group" << std::endl;

    int signal;
    sigwait(&signals, &signal);
    location.leave(std::chrono::seconds(2));
    while (sessions > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    orb->destroy();
    return 0;
  } catch (const CORBA::Exception &exception) {
    std::cerr << "server: " << exception._name() << std::endl;
  } catch (const std::exception &exception) {
    std::cerr << "server: " << exception.what() << std::endl;
  }
  return 1;
}
