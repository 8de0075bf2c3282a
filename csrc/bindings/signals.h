// Ctrl-C during a wait.
#pragma once
#include "bindings/gil.h"

namespace gld {

// Lets Ctrl-C end a wait. Called without the GIL.
inline void check_signals() {
  GilHeld gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace gld
