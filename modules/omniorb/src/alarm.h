// Whether the members of a location send their clients back.
#ifndef EVENKEEL_ALARM_H
#define EVENKEEL_ALARM_H

#include <mutex>

#include "gate.h"

namespace evenkeel {

// Clients are sent back while the alert is on, or the location is being left; but not while
// the manager does not answer: who is sent there would be lost.
class Alarm {
public:
  explicit Alarm(gate::Site &site) : site_(site) {}

  void alert(bool on) { change(alert_, on); }
  void leaving(bool on) { change(leaving_, on); }
  void manager_answers(bool answers) { change(manager_answers_, answers); }

  bool alerted() const {
    std::lock_guard<std::mutex> guard(lock_);
    return alert_;
  }

private:
  gate::Site &site_;
  mutable std::mutex lock_;
  bool alert_ = false;
  bool leaving_ = false;
  bool manager_answers_ = true;

  void change(bool &what, bool value) {
    std::lock_guard<std::mutex> guard(lock_);
    what = value;
    gate::divert(site_, (alert_ || leaving_) && manager_answers_);
  }
};

} // namespace evenkeel

#endif
