// Unmodified omniORB as a server or client, driven by a test.
//
//   peer server NAME [-ORB…]         see server.cc
//   peer client REFERENCE … [-ORB…]  see client.cc
#include "peer.h"

std::string told(const CORBA::Exception &exception) {
  std::ostringstream out;
  out << "error ";
  if (const auto *system = CORBA::SystemException::_downcast(&exception)) {
    static const char *const COMPLETED[] = {"COMPLETED_YES", "COMPLETED_NO", "COMPLETED_MAYBE"};
    out << exception._name() << " 0x" << std::hex << system->minor() << ' '
        << COMPLETED[system->completed() % 3];
  } else {
    out << exception._rep_id();
    if (const auto *refused = PeerTest::Refused::_downcast(&exception))
      out << ' ' << refused->why.in() << ' ' << refused->code;
  }
  return out.str();
}

int main(int argc, char **argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    std::vector<std::string> arguments(argv + 1, argv + argc);
    int status = 2;
    if (arguments.size() >= 2 && arguments[0] == "server")
      status = serve(orb, {arguments.begin() + 1, arguments.end()});
    else if (arguments.size() >= 2 && arguments[0] == "client")
      status = call(orb, {arguments.begin() + 1, arguments.end()});
    else
      std::cerr << "usage: peer server NAME | peer client REFERENCE …" << std::endl;
    orb->destroy();
    return status;
  } catch (const CORBA::Exception &exception) {
    std::cerr << told(exception) << std::endl;
    return 1;
  }
}
