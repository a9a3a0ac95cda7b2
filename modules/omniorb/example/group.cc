// Creates the group of the session factories, once, and writes its reference to a file:
//
//   group stock.ior -ORBInitRef LoadManager=corbaloc:iiop:HOST:PORT/LoadManager
#include <fstream>
#include <iostream>

#include <evenkeel/omniorb.h>

#include "stock.hh"

int main(int argc, char **argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    if (argc != 2) {
      std::cerr << "usage: group FILE -ORBInitRef LoadManager=…" << std::endl;
      return 2;
    }
    CosLoadBalancing::LoadManager_var manager = evenkeel::manager(orb);
    // The least loaded server gets the next session; one that is full sheds.
    CORBA::Any value;
    CosLoadBalancing::StrategyInfo strategy;
    strategy.name = "LeastLoaded";
    value <<= CORBA::Float(100);
    evenkeel::set(strategy.props, "org.omg.CosLoadBalancing.Strategy.LeastLoaded.CriticalThreshold",
                  value);
    // Until its next report, each new session counts for one there.
    value <<= CORBA::Float(1);
    evenkeel::set(strategy.props, "org.omg.CosLoadBalancing.Strategy.LeastLoaded.PerBalanceLoad",
                  value);
    PortableGroup::Properties properties;
    value <<= strategy;
    evenkeel::set(properties, "org.omg.CosLoadBalancing.StrategyInfo", value);
    // What the servers tell as their load: sessions that are open.
    value <<= CORBA::ULong(1000);
    evenkeel::set(properties, "org.evenkeel.LoadId", value);
    CORBA::Object_var group = evenkeel::create_group(manager, Stock::SessionFactory::_PD_repoId,
                                                     "stock", nullptr, properties);
    CORBA::String_var reference = orb->object_to_string(group);
    std::ofstream(argv[1]) << reference << std::endl;
    return 0;
  } catch (const CORBA::Exception &exception) {
    std::cerr << "group: " << exception._name() << std::endl;
    return 1;
  }
}
