// Ctrl-C during a wait.
#pragma once
#include <pybind11/pybind11.h>

namespace gld {

// Lets Ctrl-C end a wait. Called without the GIL.
inline void check_signals() {
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace gld
