// A client.
//
//   peer client REFERENCE
//     Does what the lines on standard input say, one call each, and answers each with a line.
//   peer client REFERENCE OPERATION… [--count N] [--rate HZ] [--warm N] [--each] [--latencies]
//     Repeats one operation: N times, or until standard input ends. Without a rate, the
//     next call follows the last one's answer. Prints `bound ANSWER` whenever the answer
//     is another than before (with --each: every answer), and at the end
//     `done CALLS ERRORS SECONDS`, with --latencies before it `latency NANOSECONDS CALLS`
//     for each step of a histogram (steps of 1 %, the first --warm calls left out).
//
// Operations: those of Peer by their names (`who`, `add 1 2`, `blob BYTES`, `wide TEXT`,
// `reflect KIND`, `post 1`, `posted`, `fail KIND`, `sleep MS`, `is_prime N`, `setting [N]`),
// `is_a ID`, `non_existent`, `open NAME` for a session factory and then `session who`,
// `session count`, `session close`, `use REFERENCE` and `reference`.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <codecvt>
#include <locale>
#include <map>
#include <thread>

#include <omniORB4/Naming.hh>

#include "peer.h"

namespace {

typedef std::vector<std::string> Words;

std::wstring wide(const std::string &text) {
  return std::wstring_convert<std::codecvt_utf8<wchar_t>>().from_bytes(text);
}

std::string narrow(const CORBA::WChar *text) {
  return std::wstring_convert<std::codecvt_utf8<wchar_t>>().to_bytes(text);
}

class Client {
public:
  Client(CORBA::ORB_ptr orb, const std::string &reference) : orb_(CORBA::ORB::_duplicate(orb)) {
    use(reference);
  }

  // One call; its answer, or the exception.
  std::string run(const Words &words) {
    try {
      return answer(words);
    } catch (const CORBA::Exception &exception) {
      return told(exception);
    }
  }

private:
  CORBA::ORB_var orb_;
  CORBA::Object_var object_;
  PeerTest::Peer_var peer_;
  PeerTest::SessionFactory_var factory_;
  PeerTest::Session_var session_;

  // References are not asked for their types: the first request is the call itself.
  void use(const std::string &reference) {
    object_ = reference.find(':') == std::string::npos
                  ? orb_->resolve_initial_references(reference.c_str())
                  : orb_->string_to_object(reference.c_str());
    peer_ = PeerTest::Peer::_unchecked_narrow(object_);
    factory_ = PeerTest::SessionFactory::_unchecked_narrow(object_);
  }

  std::string answer(const Words &words) {
    const std::string &operation = words.at(0);
    std::ostringstream out;
    if (operation == "who") {
      CORBA::String_var who = peer_->who();
      return who.in();
    } else if (operation == "add") {
      out << peer_->add(number(words.at(1)), number(words.at(2)));
    } else if (operation == "blob") {
      blob(number(words.at(1)));
      out << "blob " << words[1];
    } else if (operation == "wide") {
      CORBA::WString_var text = peer_->wide(wide(words.at(1)).c_str());
      return narrow(text);
    } else if (operation == "reflect") {
      out << "reflect " << words.at(1) << (reflect(words[1]) ? "" : " differs");
    } else if (operation == "post") {
      peer_->post(number(words.at(1)));
      out << "post " << words[1];
    } else if (operation == "posted") {
      out << peer_->posted();
    } else if (operation == "fail") {
      peer_->fail(number(words.at(1)));
      out << "fail " << words[1];
    } else if (operation == "sleep") {
      peer_->sleep(number(words.at(1)));
      out << "sleep " << words[1];
    } else if (operation == "is_prime") {
      out << (peer_->is_prime(number(words.at(1))) ? "prime" : "composite");
    } else if (operation == "setting") {
      if (words.size() > 1) peer_->setting(number(words[1]));
      out << peer_->setting();
    } else if (operation == "is_a") {
      out << (object_->_is_a(words.at(1).c_str()) ? "yes" : "no");
    } else if (operation == "non_existent") {
      out << (object_->_non_existent() ? "yes" : "no");
    } else if (operation == "open") {
      session_ = factory_->open(words.at(1).c_str());
      out << "open";
    } else if (operation == "session") {
      return session(words.at(1));
    } else if (operation == "use") {
      use(words.at(1));
      out << "use";
    } else if (operation == "reference") {
      CORBA::String_var text = orb_->object_to_string(object_);
      return text.in();
    } else {
      return "unknown operation " + operation;
    }
    return out.str();
  }

  std::string session(const std::string &operation) {
    if (operation == "who") {
      CORBA::String_var who = session_->who();
      return who.in();
    }
    if (operation == "count") return std::to_string(session_->count());
    session_->close();
    return "close";
  }

  void blob(CORBA::ULong size) {
    PeerTest::Octets sent;
    sent.length(size);
    for (CORBA::ULong i = 0; i < size; i++) sent[i] = CORBA::Octet(i * 31 + (i >> 8));
    PeerTest::Octets_var back = peer_->blob(sent);
    bool same = back->length() == size &&
                std::equal(sent.get_buffer(), sent.get_buffer() + size, back->get_buffer());
    if (!same) throw CORBA::DATA_CONVERSION(1, CORBA::COMPLETED_YES);
  }

  // Whether a value of that kind comes back as it went.
  bool reflect(const std::string &kind) {
    CORBA::Any sent;
    PeerTest::Octets octets;
    CosNaming::Name name;
    if (kind == "long") {
      sent <<= CORBA::Long(-7);
    } else if (kind == "double") {
      sent <<= CORBA::Double(0.1);
    } else if (kind == "string") {
      sent <<= "text";
    } else if (kind == "wstring") {
      sent <<= CORBA::Any::from_wstring(const_cast<CORBA::WChar *>(L"wide"), 0);
    } else if (kind == "alias") {
      octets.length(3);
      sent <<= octets;
    } else if (kind == "nested") {
      name.length(2);
      name[0].id = CORBA::string_dup("host");
      name[1].kind = CORBA::string_dup("kind");
      CORBA::Any inner;
      inner <<= name;
      sent <<= inner;
    } else if (kind == "object") {
      sent <<= object_;
    } else if (kind == "exception") {
      sent <<= PeerTest::Refused("why", 3);
    } else if (kind == "recursive") {
      recursive(sent);
    } else {
      throw CORBA::BAD_PARAM(1, CORBA::COMPLETED_NO);
    }
    CORBA::Any_var back = peer_->reflect(sent);
    CORBA::Object_var factory = orb_->resolve_initial_references("DynAnyFactory");
    auto dynamic = DynamicAny::DynAnyFactory::_narrow(factory);
    DynamicAny::DynAny_var ours = dynamic->create_dyn_any(sent);
    DynamicAny::DynAny_var theirs = dynamic->create_dyn_any(back.in());
    bool same = ours->equal(theirs);
    ours->destroy();
    theirs->destroy();
    CORBA::release(dynamic);
    return same;
  }

  // A node with one child: its TypeCode refers back to itself.
  void recursive(CORBA::Any &sent) {
    CORBA::TypeCode_var self = orb_->create_recursive_tc("IDL:evenkeel.org/PeerTest/Node:1.0");
    CORBA::StructMemberSeq members;
    members.length(2);
    members[0].name = CORBA::string_dup("value");
    members[0].type = CORBA::TypeCode::_duplicate(CORBA::_tc_long);
    members[1].name = CORBA::string_dup("children");
    members[1].type = orb_->create_sequence_tc(0, self);
    CORBA::TypeCode_var node =
        orb_->create_struct_tc("IDL:evenkeel.org/PeerTest/Node:1.0", "Node", members);
    CORBA::Object_var object = orb_->resolve_initial_references("DynAnyFactory");
    DynamicAny::DynAnyFactory_var factory = DynamicAny::DynAnyFactory::_narrow(object);
    DynamicAny::DynAny_var made = factory->create_dyn_any_from_type_code(node);
    DynamicAny::DynStruct_var root = DynamicAny::DynStruct::_narrow(made);
    root->insert_long(1);
    root->next();
    DynamicAny::DynAny_var field = root->current_component();
    DynamicAny::DynSequence_var children = DynamicAny::DynSequence::_narrow(field);
    children->set_length(1);
    CORBA::Any_var value = root->to_any();
    sent = value.in();
    root->destroy();
  }
};

// Counts in steps of 1 %.
class Histogram {
public:
  void add(std::chrono::nanoseconds time) {
    double nanoseconds = std::max<double>(1, time.count());
    counts_[long(std::log(nanoseconds) / std::log(1.01))]++;
  }
  void print() const {
    for (auto step : counts_) {
      std::ostringstream line;
      line << "latency " << long(std::pow(1.01, step.first + 0.5)) << ' ' << step.second;
      say(line.str());
    }
  }

private:
  std::map<long, long> counts_;
};

struct Loop {
  Words operation;
  long count = 0;
  double rate = 0;
  long warm = 0;
  bool each = false;
  bool latencies = false;
};

Loop loop_of(const Words &arguments) {
  Loop loop;
  for (size_t i = 1; i < arguments.size(); i++) {
    const std::string &word = arguments[i];
    if (word == "--count") loop.count = number(arguments.at(++i));
    else if (word == "--rate") loop.rate = std::stod(arguments.at(++i));
    else if (word == "--warm") loop.warm = number(arguments.at(++i));
    else if (word == "--each") loop.each = true;
    else if (word == "--latencies") loop.latencies = true;
    else loop.operation.push_back(word);
  }
  return loop;
}

std::atomic<bool> ended(false);

int repeat(Client &client, const Loop &loop) {
  typedef std::chrono::steady_clock Clock;
  if (!loop.count)
    std::thread([] {
      char unused[64];
      while (read(STDIN_FILENO, unused, sizeof unused) > 0) {}
      ended = true;
    }).detach();
  Histogram histogram;
  std::string last;
  long calls = 0, errors = 0;
  auto start = Clock::now();
  auto due = start;
  std::chrono::duration<double> period(loop.rate > 0 ? 1 / loop.rate : 0);
  while (loop.count ? calls < loop.count : !ended) {
    if (loop.rate > 0) {
      std::this_thread::sleep_until(due);
      due += std::chrono::duration_cast<Clock::duration>(period);
      // What a moved or stopped member has held up is not made up for.
      due = std::max(due, Clock::now() - std::chrono::duration_cast<Clock::duration>(period));
    }
    if (calls == loop.warm) start = Clock::now();
    auto sent = Clock::now();
    std::string answer = client.run(loop.operation);
    if (calls >= loop.warm && loop.latencies) histogram.add(Clock::now() - sent);
    calls++;
    if (answer.compare(0, 6, "error ") == 0) errors++;
    if (loop.each) say(answer);
    else if (answer != last) say("bound " + answer);
    last = answer;
  }
  if (loop.latencies) histogram.print();
  std::chrono::duration<double> took = Clock::now() - start;
  std::ostringstream line;
  line << "done " << calls << ' ' << errors << ' ' << took.count();
  say(line.str());
  return 0;
}

} // namespace

int call(CORBA::ORB_ptr orb, const std::vector<std::string> &arguments) {
  Client client(orb, arguments.at(0));
  Loop loop = loop_of(arguments);
  if (!loop.operation.empty()) return repeat(client, loop);
  say("ready");
  for (std::string line; std::getline(std::cin, line);) say(client.run(words(line)));
  return 0;
}
