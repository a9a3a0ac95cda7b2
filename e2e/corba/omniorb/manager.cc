// The operations of the LoadManager through the stubs that omniidl makes, each by its name.
//
// Properties are words: `membership=0`, `initial=2`, `minimum=2`, `strategy=NAME` or
// `strategy=NAME,Tolerance=1.5,…`, `custom=REFERENCE`, `factories=LOCATION@REFERENCE,…`,
// and `ID[:TYPE]=VALUE` (TYPE is float, string, boolean, ulong, ushort or long).
// Loads are `ID=VALUE`. Numbers go with the alias that the IDL gives them.
#include <evenkeel/omniorb.h>

#include "manager.h"

using namespace CosLoadBalancing;
using PortableGroup::Properties;

namespace {

typedef std::vector<std::string> Words;

// Before and after the first `by`; the second is empty without it.
std::pair<std::string, std::string> split(const std::string &text, char by) {
  size_t at = text.find(by);
  if (at == std::string::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + 1)};
}

Words parts(std::string text, char by) {
  Words all;
  while (!text.empty()) {
    auto pair = split(text, by);
    all.push_back(pair.first);
    text = pair.second;
  }
  return all;
}

std::string name_text(const CosNaming::Name &name) {
  std::string text;
  for (CORBA::ULong i = 0; i < name.length(); i++) {
    if (i) text += '/';
    text += name[i].id.in();
    if (*name[i].kind.in()) text += std::string(".") + name[i].kind.in();
  }
  return text;
}

std::string loads_text(const LoadList &loads) {
  std::ostringstream out;
  for (CORBA::ULong i = 0; i < loads.length(); i++)
    out << (i ? " " : "") << loads[i].id << '=' << loads[i].value;
  return out.str();
}

LoadList loads_of(const Words &words, size_t from) {
  LoadList loads;
  loads.length(words.size() - from);
  for (size_t i = from; i < words.size(); i++) {
    auto pair = split(words[i], '=');
    loads[i - from].id = number(pair.first);
    loads[i - from].value = std::stof(pair.second);
  }
  return loads;
}

// What the manager tells of a value.
std::string value_text(const CORBA::Any &value) {
  CORBA::Long small;
  CORBA::UShort count;
  CORBA::Float fraction;
  CORBA::ULong id;
  CORBA::Boolean flag;
  const char *text;
  const StrategyInfo *info;
  const PortableGroup::FactoryInfos *factories;
  CORBA::Object_var object;
  std::ostringstream out;
  if (value >>= small) out << small;
  else if (value >>= count) out << count;
  else if (value >>= id) out << id;
  else if (value >>= fraction) out << fraction;
  else if (value >>= CORBA::Any::to_boolean(flag)) out << (flag ? "true" : "false");
  else if (value >>= text) out << text;
  else if (value >>= info) out << info->name << '(' << properties_text(info->props) << ')';
  else if (value >>= factories) out << factories->length() << " factories";
  else if (value >>= CORBA::Any::to_object(object.out())) out << "object";
  else out << "unknown";
  return out.str();
}

} // namespace

std::string properties_text(const Properties &properties) {
  std::string text;
  for (CORBA::ULong i = 0; i < properties.length(); i++)
    text += (i ? " " : "") + name_text(properties[i].nam) + "=" + value_text(properties[i].val);
  return text;
}

Manager::Manager(CORBA::ORB_ptr orb, const std::string &reference)
    : orb_(CORBA::ORB::_duplicate(orb)) {
  CORBA::Object_var object = evenkeel::manager(orb, reference);
  // Asks for its type, as programs do.
  manager_ = LoadManager::_narrow(object);
  if (CORBA::is_nil(manager_)) throw CORBA::INV_OBJREF(0, CORBA::COMPLETED_NO);
}

CORBA::Object_ptr Manager::object(const std::string &text) {
  if (text == "nil") return CORBA::Object::_nil();
  return orb_->string_to_object(text.c_str());
}

std::string Manager::text(CORBA::Object_ptr object) {
  CORBA::String_var text = orb_->object_to_string(object);
  return text.in();
}

void Manager::property(Properties &properties, const std::string &word) {
  auto pair = split(word, '=');
  const std::string &key = pair.first, &given = pair.second;
  CORBA::Any value;
  if (key == "membership") {
    value <<= CORBA::Long(number(given));
    value.type(PortableGroup::_tc_MembershipStyleValue);
    evenkeel::set(properties, "org.omg.PortableGroup.MembershipStyle", value);
  } else if (key == "initial") {
    value <<= CORBA::UShort(number(given));
    value.type(PortableGroup::_tc_InitialNumberMembersValue);
    evenkeel::set(properties, "org.omg.PortableGroup.InitialNumberMembers", value);
  } else if (key == "minimum") {
    value <<= CORBA::UShort(number(given));
    value.type(PortableGroup::_tc_MinimumNumberMembersValue);
    evenkeel::set(properties, "org.omg.PortableGroup.MinimumNumberMembers", value);
  } else if (key == "strategy") {
    Words all = parts(given, ',');
    StrategyInfo info;
    info.name = all.at(0).c_str();
    for (size_t i = 1; i < all.size(); i++) {
      auto inner = split(all[i], '=');
      std::string id = "org.omg.CosLoadBalancing.Strategy." + all[0] + "." + inner.first;
      CORBA::Any number;
      number <<= CORBA::Float(std::stof(inner.second));
      evenkeel::set(info.props, id.c_str(), number);
    }
    value <<= info;
    evenkeel::set(properties, "org.omg.CosLoadBalancing.StrategyInfo", value);
  } else if (key == "custom") {
    CORBA::Object_var strategy = object(given);
    CustomStrategy_var custom = CustomStrategy::_unchecked_narrow(strategy);
    value <<= custom;
    evenkeel::set(properties, "org.omg.CosLoadBalancing.CustomStrategy", value);
  } else if (key == "factories") {
    PortableGroup::FactoryInfos infos;
    for (const std::string &part : parts(given, ',')) {
      auto factory = split(part, '@');
      CORBA::ULong length = infos.length();
      infos.length(length + 1);
      CORBA::Object_var reference = object(factory.second);
      infos[length].the_factory = PortableGroup::GenericFactory::_unchecked_narrow(reference);
      infos[length].the_location = evenkeel::location_name(factory.first);
      // What the factory is to be told.
      value <<= factory.first.c_str();
      evenkeel::set(infos[length].the_criteria, "made-at", value);
    }
    value <<= infos;
    evenkeel::set(properties, "org.omg.PortableGroup.Factories", value);
  } else {
    auto typed = split(key, ':');
    if (typed.second == "float") value <<= CORBA::Float(std::stof(given));
    else if (typed.second == "boolean") value <<= CORBA::Any::from_boolean(given == "true");
    else if (typed.second == "ulong") value <<= CORBA::ULong(number(given));
    else if (typed.second == "ushort") value <<= CORBA::UShort(number(given));
    else if (typed.second == "long") value <<= CORBA::Long(number(given));
    else value <<= given.c_str();
    evenkeel::set(properties, typed.first.c_str(), value);
  }
}

Properties Manager::properties(const Words &words, size_t from) {
  Properties properties;
  for (size_t i = from; i < words.size(); i++) property(properties, words[i]);
  return properties;
}

std::string Manager::answer(const Words &words) {
  const std::string &operation = words.at(0);
  auto location = [&](size_t i) { return evenkeel::location_name(words.at(i)); };
  CORBA::Object_var group;
  if (words.size() > 1 && words[1].find(':') != std::string::npos &&
      words[1].compare(0, 4, "IDL:") != 0 && words[1].find('=') == std::string::npos)
    group = object(words[1]);

  // PropertyManager
  if (operation == "set_default_properties") {
    manager_->set_default_properties(properties(words, 1));
  } else if (operation == "get_default_properties") {
    PortableGroup::Properties_var all = manager_->get_default_properties();
    return properties_text(all);
  } else if (operation == "remove_default_properties") {
    manager_->remove_default_properties(properties(words, 1));
  } else if (operation == "set_type_properties") {
    manager_->set_type_properties(words.at(1).c_str(), properties(words, 2));
  } else if (operation == "get_type_properties") {
    PortableGroup::Properties_var all = manager_->get_type_properties(words.at(1).c_str());
    return properties_text(all);
  } else if (operation == "remove_type_properties") {
    manager_->remove_type_properties(words.at(1).c_str(), properties(words, 2));
  } else if (operation == "set_properties_dynamically") {
    manager_->set_properties_dynamically(group, properties(words, 2));
  } else if (operation == "get_properties") {
    PortableGroup::Properties_var all = manager_->get_properties(group);
    return properties_text(all);
    // ObjectGroupManager
  } else if (operation == "create_member") {
    group = manager_->create_member(group, location(2), words.at(3).c_str(), properties(words, 4));
    return text(group);
  } else if (operation == "add_member") {
    CORBA::Object_var member = object(words.at(3));
    group = manager_->add_member(group, location(2), member);
    return text(group);
  } else if (operation == "remove_member") {
    group = manager_->remove_member(group, location(2));
    return text(group);
  } else if (operation == "locations_of_members") {
    PortableGroup::Locations_var all = manager_->locations_of_members(group);
    std::string line;
    for (CORBA::ULong i = 0; i < all->length(); i++) line += (i ? " " : "") + name_text(all[i]);
    return line;
  } else if (operation == "groups_at_location") {
    PortableGroup::ObjectGroups_var all = manager_->groups_at_location(location(1));
    std::string line;
    for (CORBA::ULong i = 0; i < all->length(); i++) line += (i ? " " : "") + text(all[i]);
    return line;
  } else if (operation == "get_object_group_id") {
    return std::to_string(manager_->get_object_group_id(group));
  } else if (operation == "get_object_group_ref") {
    group = manager_->get_object_group_ref(group);
    return text(group);
  } else if (operation == "get_member_ref") {
    CORBA::Object_var member = manager_->get_member_ref(group, location(2));
    return text(member);
  } else if (operation == "get_object_group_ref_from_id") {
    group = manager_->get_object_group_ref_from_id(std::stoull(words.at(1)));
    return text(group);
    // GenericFactory
  } else if (operation == "create_object") {
    CORBA::Any_var id;
    group = manager_->create_object(words.at(1).c_str(), properties(words, 2), id.out());
    ids_[text(group)] = id;
    return text(group);
  } else if (operation == "delete_object") {
    manager_->delete_object(ids_.at(words.at(1)).in());
    // LoadManager
  } else if (operation == "push_loads") {
    manager_->push_loads(location(1), loads_of(words, 2));
  } else if (operation == "get_loads") {
    LoadList_var loads = manager_->get_loads(location(1));
    return loads_text(loads);
  } else if (operation == "enable_alert") {
    manager_->enable_alert(location(1));
  } else if (operation == "disable_alert") {
    manager_->disable_alert(location(1));
  } else if (operation == "register_load_alert") {
    CORBA::Object_var alert = object(words.at(2));
    LoadAlert_var narrowed = LoadAlert::_unchecked_narrow(alert);
    manager_->register_load_alert(location(1), narrowed);
  } else if (operation == "get_load_alert") {
    LoadAlert_var alert = manager_->get_load_alert(location(1));
    return text(alert);
  } else if (operation == "remove_load_alert") {
    manager_->remove_load_alert(location(1));
  } else if (operation == "register_load_monitor") {
    CORBA::Object_var monitor = object(words.at(2));
    LoadMonitor_var narrowed = LoadMonitor::_unchecked_narrow(monitor);
    manager_->register_load_monitor(location(1), narrowed);
  } else if (operation == "get_load_monitor") {
    LoadMonitor_var monitor = manager_->get_load_monitor(location(1));
    return text(monitor);
  } else if (operation == "remove_load_monitor") {
    manager_->remove_load_monitor(location(1));
    // Strategy, of which the property of a group is a reference
  } else if (operation == "strategy_name") {
    CORBA::String_var name = strategy(group)->name();
    return name.in();
  } else if (operation == "strategy_properties") {
    PortableGroup::Properties_var all = strategy(group)->get_properties();
    return properties_text(all);
  } else if (operation == "strategy_next_member") {
    CORBA::Object_var member = strategy(group)->next_member(group, manager_);
    return text(member);
  } else if (operation == "strategy_get_loads") {
    LoadList_var loads = strategy(group)->get_loads(manager_, location(2));
    return loads_text(loads);
  } else if (operation == "strategy_push_loads") {
    strategy(group)->push_loads(location(2), loads_of(words, 3));
  } else if (operation == "strategy_analyze_loads") {
    strategy(group)->analyze_loads(group, manager_);
  } else {
    return "unknown operation " + operation;
  }
  return operation;
}

Strategy_var Manager::strategy(CORBA::Object_ptr group) {
  PortableGroup::Properties_var all = manager_->get_properties(group);
  for (CORBA::ULong i = 0; i < all->length(); i++) {
    if (name_text(all[i].nam) != "org.omg.CosLoadBalancing.Strategy") continue;
    Strategy_ptr strategy;
    if (all[i].val >>= strategy) return Strategy::_duplicate(strategy);
    CORBA::Object_var object;
    if (all[i].val >>= CORBA::Any::to_object(object.out()))
      return Strategy::_unchecked_narrow(object);
  }
  throw CORBA::BAD_PARAM(2, CORBA::COMPLETED_NO);
}
