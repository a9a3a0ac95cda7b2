// Opens sessions and trades through them. It knows nothing of the balancer: the reference of
// the group is that of a session factory.
//
//   client stock.ior [SESSIONS]
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "stock.hh"

namespace {

void trade(Stock::Session_ptr session) {
  double cash = session->trade("KEEL", 10);
  cash = session->trade("ACME", 20);
  cash = session->trade("KEEL", -5);
  if (cash != 10000 - 480 - 250 + 240) throw CORBA::INTERNAL(0, CORBA::COMPLETED_YES);
}

} // namespace

int main(int argc, char **argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    if (argc < 2) {
      std::cerr << "usage: client FILE [SESSIONS]" << std::endl;
      return 2;
    }
    int count = argc > 2 ? std::atoi(argv[2]) : 12;
    std::string reference;
    std::ifstream(argv[1]) >> reference;
    std::vector<Stock::Session_var> sessions;
    std::map<std::string, int> servers;
    for (int i = 0; i < count; i++) {
      // A reference of its own for each session, as if each came from another client: a
      // client that is bound stays where it is.
      CORBA::Object_var object = orb->string_to_object(reference.c_str());
      Stock::SessionFactory_var factory = Stock::SessionFactory::_unchecked_narrow(object);
      Stock::Session_var session = factory->open("somebody", 10000);
      trade(session);
      CORBA::String_var server = session->server();
      servers[server.in()]++;
      sessions.push_back(session);
    }
    for (auto &server : servers)
      std::cout << server.second << " sessions at " << server.first << std::endl;
    for (auto &session : sessions) session->close();
    orb->destroy();
    return 0;
  } catch (const CORBA::Exception &exception) {
    std::cerr << "client: " << exception._name() << std::endl;
    return 1;
  }
}
