// The GIL, released and taken, also while the interpreter ends.
#pragma once
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace gld {

// Takes the GIL. A daemon thread that wants it when the interpreter has begun to end never gets it: until Python 3.13
// the thread is ended there instead, by pthread_exit(), which unwinds its stack. On its way lie destructors, which may
// not be left so (std::terminate: SIGABRT, whatever the program's exit code was), and references to Python objects,
// which would be given up without the GIL. So it waits here for the end of the process, as it does from Python 3.14 on.
template <typename Take>
void take_gil(Take&& take) noexcept {
  try {
    take();
  } catch (...) {  // what C functions of Python raise is this alone
    for (;;) ::pause();
  }
}

// Whether the interpreter has begun to end.
inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Releases the GIL for a scope. Used in place of pybind11's class of that kind, whose destructor ends the process then.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// What `work` gives, done without the GIL: it touches no Python object.
template <typename Work>
auto without_gil(Work&& work) {
  const GilReleased released;
  return work();
}

// Holds the GIL for a scope, in any thread, whether or not it had it before.
class GilHeld {
 public:
  GilHeld() {
    take_gil([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace gld
