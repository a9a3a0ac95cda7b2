// Names, references and properties.
#include <fstream>
#include <stdexcept>

#include <evenkeel/omniorb.h>

namespace evenkeel {

namespace {

// One component from `at` on: up to `/`, which is passed, or the end.
CosNaming::NameComponent component(const std::string &text, std::size_t &at) {
  std::string parts[2];
  int part = 0;
  for (; at < text.size() && text[at] != '/'; at++) {
    if (text[at] == '\\') {
      if (++at == text.size()) throw std::invalid_argument("location name ends with \\: " + text);
      parts[part] += text[at];
    } else if (text[at] == '.') {
      if (part++) throw std::invalid_argument("location name with two kinds: " + text);
    } else {
      parts[part] += text[at];
    }
  }
  if (parts[0].empty() && !part)
    throw std::invalid_argument("location name with an empty component: " + text);
  CosNaming::NameComponent component;
  component.id = parts[0].c_str();
  component.kind = parts[1].c_str();
  return component;
}

const char FILE_URI[] = "file://";

std::string read(const std::string &path) {
  std::ifstream file(path);
  std::string reference;
  if (!(file >> reference)) throw std::runtime_error("no reference in " + path);
  return reference;
}

// A name of one component.
CosNaming::Name name_of(const char *id) {
  CosNaming::Name name;
  name.length(1);
  name[0].id = id;
  return name;
}

} // namespace

CosNaming::Name location_name(const std::string &text) {
  CosNaming::Name name;
  std::size_t at = 0;
  do {
    CORBA::ULong length = name.length();
    name.length(length + 1);
    name[length] = component(text, at);
  } while (at++ < text.size());
  return name;
}

CosLoadBalancing::LoadManager_ptr manager(CORBA::ORB_ptr orb, const std::string &reference) {
  CORBA::Object_var object;
  if (reference.compare(0, sizeof FILE_URI - 1, FILE_URI) == 0)
    object = orb->string_to_object(read(reference.substr(sizeof FILE_URI - 1)).c_str());
  else if (reference.find(':') == std::string::npos)
    object = orb->resolve_initial_references(reference.c_str());
  else
    object = orb->string_to_object(reference.c_str());
  // A nil reference is no manager.
  if (CORBA::is_nil(object)) throw CORBA::BAD_PARAM(0, CORBA::COMPLETED_NO);
  return CosLoadBalancing::LoadManager::_unchecked_narrow(object);
}

void set(PortableGroup::Properties &properties, const char *id, const CORBA::Any &value) {
  CORBA::ULong length = properties.length();
  properties.length(length + 1);
  properties[length].nam = name_of(id);
  properties[length].val = value;
}

CORBA::Object_ptr create_group(CosLoadBalancing::LoadManager_ptr manager, const char *type_id,
                               const char *name, const char *strategy,
                               PortableGroup::Properties properties) {
  CORBA::Any value;
  value <<= PortableGroup::MEMB_APP_CTRL;
  set(properties, "org.omg.PortableGroup.MembershipStyle", value);
  if (name) {
    value <<= name;
    set(properties, "org.evenkeel.GroupName", value);
  }
  if (strategy) {
    CosLoadBalancing::StrategyInfo info;
    info.name = strategy;
    value <<= info;
    set(properties, "org.omg.CosLoadBalancing.StrategyInfo", value);
  }
  CORBA::Any_var id;
  return manager->create_object(type_id, properties, id.out());
}

} // namespace evenkeel
