// Memory that crosses between Python and the core through the buffer protocol.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "common/error.h"

namespace gld {

// Pooled memory with the buffer protocol: what sockets receive into, and torch.frombuffer looks at.
struct Buffer {
  std::shared_ptr<void> memory;
  size_t nbytes;
};

// The memory of a sequence of Python buffers, kept for a scope that has the GIL at both ends.
class BufferViews {
 public:
  explicit BufferViews(const pybind11::sequence& parts) {
    views_.reserve(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      Py_buffer view;
      const pybind11::object part = parts[i];
      if (PyObject_GetBuffer(part.ptr(), &view, PyBUF_SIMPLE) != 0) {
        PyErr_Clear();
        release();
        throw InvalidArgument(message("parts[", i, "]: expected a contiguous buffer, got ",
                                      std::string(pybind11::str(pybind11::type::of(part).attr("__name__")))));
      }
      views_.push_back(view);
    }
  }
  ~BufferViews() { release(); }
  BufferViews(const BufferViews&) = delete;
  BufferViews& operator=(const BufferViews&) = delete;
  const std::vector<Py_buffer>& get() const { return views_; }

 private:
  void release() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }
  std::vector<Py_buffer> views_;
};

}  // namespace gld
