#include <pybind11/stl.h>

#include <cstring>

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "bindings/signals.h"
#include "channel/loans.h"
#include "channel/shm_ring.h"

namespace py = pybind11;

namespace gld {
namespace {

// A message as Python sees it: read-only bytes with the buffer protocol.
struct PyMessage {
  std::unique_ptr<ShmRing::Message> message;
  py::ssize_t exports = 0;

  void release() {
    if (exports != 0) {
      PyErr_SetString(PyExc_BufferError, "release(): views of this message still exist");
      throw py::error_already_set();
    }
    message->release();
  }
};

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  auto& self = py::cast<PyMessage&>(py::handle(object));
  if (self.message->released()) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this message was released");
    return -1;
  }
  const Bytes bytes = self.message->bytes();
  const int code = PyBuffer_FillInfo(view, object, const_cast<void*>(bytes.data), static_cast<py::ssize_t>(bytes.size),
                                     /*readonly=*/1, flags);
  if (code == 0) ++self.exports;
  return code;
}

void release_buffer(PyObject* object, Py_buffer*) { --py::cast<PyMessage&>(py::handle(object)).exports; }

void setup_buffer_protocol(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = get_buffer;
  type->as_buffer.bf_releasebuffer = release_buffer;
  type->ht_type.tp_as_buffer = &type->as_buffer;
}

void send(ShmRing& ring, const py::sequence& parts, std::optional<double> timeout_s) {
  const Deadline deadline(timeout_s);
  const BufferViews views(parts);
  GilReleased no_gil;  // the views pin the memory
  std::vector<Bytes> bytes;
  for (const Py_buffer& view : views.get()) bytes.push_back({view.buf, static_cast<size_t>(view.len)});
  ring.send(bytes, deadline, check_signals);
}

std::unique_ptr<PyMessage> recv(ShmRing& ring, std::optional<double> timeout_s) {
  const Deadline deadline(timeout_s);
  GilReleased no_gil;  // touches shared memory only
  auto received = std::make_unique<PyMessage>();
  received->message = ring.recv(deadline, check_signals);
  return received;
}

void copy_to(PyMessage& self, const py::object& target) {
  Py_buffer view;
  if (PyObject_GetBuffer(target.ptr(), &view, PyBUF_WRITABLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> release_at_end(&view, PyBuffer_Release);
  const Bytes bytes = self.message->bytes();
  if (self.message->released()) throw InvalidArgument("copy_to(): this message was released");
  if (static_cast<size_t>(view.len) < bytes.size)
    throw InvalidArgument(message("target: expected room for ", bytes.size, " bytes, got ", view.len));
  if (bytes.size == 0) return;
  ++self.exports;  // no release() from another thread while the copy runs
  {
    GilReleased no_gil;
    std::memcpy(view.buf, bytes.data, bytes.size);
  }
  --self.exports;
}

std::unique_ptr<PyMessage> try_recv(ShmRing& ring) {
  auto received = std::make_unique<PyMessage>();
  received->message = ring.try_recv();
  return received->message == nullptr ? nullptr : std::move(received);
}

// Bytes of another object as somebody borrows them. No Python code runs when they are let go: that happens wherever the
// last tensor over them dies, and a Ctrl-C that such code met would be printed there, and forgotten.
class LentMemory {
 public:
  LentMemory(std::shared_ptr<Loans> loans, const py::object& owner) : loans_(std::move(loans)) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    try {
      number = loans_->lend();
    } catch (...) {
      PyBuffer_Release(&view_);
      throw;
    }
  }
  ~LentMemory() {
    PyBuffer_Release(&view_);
    loans_->give_back(number);
  }
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  py::buffer_info info() const {
    return py::buffer_info(view_.buf, 1, py::format_descriptor<uint8_t>::format(), view_.len, view_.readonly != 0);
  }
  uint64_t number = 0;

 private:
  const std::shared_ptr<Loans> loans_;
  Py_buffer view_{};
};

}  // namespace

void bind_channel(py::module_& m) {
  py::class_<LentMemory>(m, "LentMemory", py::buffer_protocol(),
                         "Bytes of another object, which is told when this and all views of it are gone.")
      .def_readonly("number", &LentMemory::number)
      .def("__len__", [](const LentMemory& self) { return self.info().size; })
      .def_buffer(&LentMemory::info);

  py::class_<Loans, std::shared_ptr<Loans>>(m, "Loans", "Lent memory by number, and what of it came back.")
      .def(py::init([] { return as_os_error([] { return std::make_shared<Loans>(); }); }))
      .def("fileno", &Loans::fd, "Can be read when take() has something to tell.")
      .def(
          "lend",
          [](const std::shared_ptr<Loans>& self, const py::object& owner) {
            return std::make_unique<LentMemory>(self, owner);
          },
          py::arg("owner"), "The bytes of a contiguous buffer, lent under a number of their own.")
      .def("take", &Loans::take, "Numbers that came back since the last call, in order.");

  py::class_<PyMessage>(m, "Message", py::custom_type_setup(setup_buffer_protocol),
                        "A received message: read-only bytes in the ring's memory, 64-byte aligned. Its room is "
                        "given back by release(), or when the object and all views of it are gone.")
      .def("__len__", [](const PyMessage& self) { return self.message->bytes().size; })
      .def("release", &PyMessage::release, "Gives the room back. Idempotent; BufferError while views exist.")
      .def("copy_to", &copy_to, py::arg("target"), "Copies the bytes to the start of a writable buffer.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyMessage& self, const py::args&) { self.release(); })
      .def_property_readonly("released", [](const PyMessage& self) { return self.message->released(); });

  py::class_<ShmRing, std::shared_ptr<ShmRing>>(
      m, "ShmRing", "A bounded FIFO of byte messages in anonymous shared memory: many producers, one consumer process.")
      .def(py::init(&ShmRing::create), py::arg("capacity_bytes"), py::arg("max_messages") = 128,
           py::arg("most_together_bytes") = SIZE_MAX)
      .def_static("open", &ShmRing::open, py::arg("path"), "The ring of another process of this host, by its path.")
      .def_property_readonly("path", &ShmRing::path, "Opens this ring elsewhere, while this process holds it.")
      .def("send", &send, py::arg("parts"), py::arg("timeout_s") = py::none(),
           "Copies the buffers into one message; waits for room.")
      .def("recv", &recv, py::arg("timeout_s") = py::none(), "The next message in the order sent.")
      .def("try_recv", &try_recv, "The next message, or None.")
      .def("close", &ShmRing::close, "No more sends on any side; what was sent can still be received. Idempotent.")
      .def_property_readonly("closed", &ShmRing::closed)
      .def_property_readonly("pending", &ShmRing::pending, "Messages sent and not yet received.")
      .def_property_readonly("pending_bytes", &ShmRing::pending_bytes)
      .def_property_readonly("held", &ShmRing::held, "Messages received whose room is not yet free.")
      .def_property_readonly("committed_bytes", &ShmRing::committed_bytes,
                             "Memory taken from the system for messages so far.")
      .def_property_readonly("capacity_bytes", &ShmRing::capacity_bytes)
      .def_property_readonly("max_messages", &ShmRing::max_messages);
}

}  // namespace gld
