#ifndef BALANCING_H
#define BALANCING_H

#include <map>
#include <memory>

#include "manager.h"

namespace evenkeel {
class Location;
}

// What the server does with the load balancing service: see balancing.cc.
class Balancing {
public:
  // `peer` is the server's own.
  Balancing(CORBA::ORB_ptr orb, CORBA::Object_ptr peer);
  ~Balancing();
  std::string answer(const std::vector<std::string> &words);

private:
  CORBA::ORB_var orb_;
  CORBA::Object_var peer_;
  std::unique_ptr<Manager> manager_;
  std::map<std::string, std::shared_ptr<evenkeel::Location>> locations_;

  std::string at(evenkeel::Location &location, const std::vector<std::string> &words);
  CORBA::Object_ptr object(const std::vector<std::string> &words, size_t index);
  std::string text(CORBA::Object_ptr object);
};

#endif
