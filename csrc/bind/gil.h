// Python's lock, in threads that the end of the interpreter may end.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace graphene::bind {

// Where Python ends while a daemon thread works here, taking the lock ends that thread: before Python 3.14 its stack is
// unwound from within PyEval_RestoreThread, through code that does not hold the lock, and the process aborts at the
// next destructor that wants it. So the thread stays where it is until the process ends, as in Python 3.14.
class StayThere {
 public:
  StayThere() = default;
  ~StayThere() {
    while (ended_) ::pause();
  }
  StayThere(const StayThere&) = delete;
  StayThere& operator=(const StayThere&) = delete;
  StayThere(StayThere&&) = delete;
  StayThere& operator=(StayThere&&) = delete;
  void lock_is_held() { ended_ = false; }

 private:
  bool ended_ = true;
};

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() noexcept(false) {
    StayThere stay;
    PyEval_RestoreThread(state_);
    stay.lock_is_held();
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  GilReleased(GilReleased&&) = delete;
  GilReleased& operator=(GilReleased&&) = delete;

 private:
  PyThreadState* state_;
};

class GilHeld {
 public:
  GilHeld() { stay_.lock_is_held(); }

 private:
  StayThere stay_;
  pybind11::gil_scoped_acquire held_;
};

}  // namespace graphene::bind
