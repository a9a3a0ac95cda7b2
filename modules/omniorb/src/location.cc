// The library's face: see omniorb.h.
#include <stdexcept>

#include "keeper.h"

namespace evenkeel {

Location::Location(CORBA::ORB_ptr orb, const std::string &name, const Options &options)
    : keeper_(new Keeper(orb, name, options)) {}

Location::~Location() { keeper_->leave(std::chrono::milliseconds::zero()); }

void Location::add_member(CORBA::Object_ptr group, CORBA::Object_ptr member) {
  if (CORBA::is_nil(group)) throw CORBA::BAD_PARAM(0, CORBA::COMPLETED_NO);
  keeper_->add(group, member);
}

void Location::add_created(CORBA::Object_ptr member) {
  keeper_->add(CORBA::Object::_nil(), member);
}

void Location::remove_member(CORBA::Object_ptr member) { keeper_->remove(member); }

void Location::monitor(const Loads &loads, std::chrono::milliseconds push) {
  keeper_->monitor(loads, push);
}

bool Location::wait(std::chrono::milliseconds limit) { return keeper_->wait(limit); }

void Location::leave(std::chrono::milliseconds drain) { keeper_->leave(drain); }

bool Location::alerted() const { return keeper_->alerted(); }

CosLoadBalancing::LoadList Location::loads() const { return keeper_->loads(); }

} // namespace evenkeel
