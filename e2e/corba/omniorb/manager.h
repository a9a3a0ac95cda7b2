#ifndef MANAGER_H
#define MANAGER_H

#include <map>

#include <CosLoadBalancing.hh>

#include "peer.h"

std::string properties_text(const PortableGroup::Properties &properties);

// Calls of the LoadManager: see manager.cc.
class Manager {
public:
  Manager(CORBA::ORB_ptr orb, const std::string &reference);
  std::string answer(const std::vector<std::string> &words);

private:
  CORBA::ORB_var orb_;
  CosLoadBalancing::LoadManager_var manager_;
  std::map<std::string, CORBA::Any_var> ids_;

  CORBA::Object_ptr object(const std::string &text);
  std::string text(CORBA::Object_ptr object);
  void property(PortableGroup::Properties &properties, const std::string &word);
  PortableGroup::Properties properties(const std::vector<std::string> &words, size_t from);
  CosLoadBalancing::Strategy_var strategy(CORBA::Object_ptr group);
};

#endif
