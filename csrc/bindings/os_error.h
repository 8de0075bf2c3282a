// What the system refused, as Python tells it.
#pragma once
#include <pybind11/pybind11.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace gld {

// The result of `call`; its std::system_error becomes the OSError of that number.
template <typename Call>
auto as_os_error(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw pybind11::error_already_set();
  }
}

}  // namespace gld
