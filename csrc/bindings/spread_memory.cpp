#include "common/spread_memory.h"

#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "common/cuda.h"

namespace py = pybind11;

namespace gld {
namespace {

using PieceTuple = std::pair<int, size_t>;

// Memory, and who reads it.
struct Spread {
  std::shared_ptr<SpreadMemory> memory;
  int reader;
};

std::shared_ptr<const PieceMapper> mapper_for(int reader) {
  return reader == kHost ? make_host_mapper() : make_gpu_mapper(reader);
}

// The memory, whose end waits for a GPU: without the GIL, as what runs there may wait for what other threads of Python
// have yet to launch. Torch drops tensors with it.
template <typename... Arguments>
std::shared_ptr<SpreadMemory> make_memory(Arguments&&... arguments) {
  auto made = std::make_unique<SpreadMemory>(std::forward<Arguments>(arguments)...);
  return {made.release(), [](SpreadMemory* dying) {
            if (Py_IsInitialized() && PyGILState_Check() != 0) {
              const GilReleased nogil;
              delete dying;
            } else {
              delete dying;
            }
          }};
}

Spread take(const std::vector<int>& places, size_t num_bytes, int reader) {
  if (places.empty() || num_bytes == 0)
    throw InvalidArgument(message("places, num_bytes: expected some of both, got ", places.size(), " and ", num_bytes));
  return as_os_error([&] {
    GilReleased nogil;  // taking memory is slow
    return Spread{make_memory(mapper_for(reader), places, num_bytes), reader};
  });
}

Spread receive(const std::vector<PieceTuple>& described, const std::vector<int>& descriptors, int reader) {
  if (described.empty()) throw InvalidArgument("pieces: expected some, got none");
  std::vector<MemoryPiece> pieces;
  for (const auto& [place, num_bytes] : described) pieces.push_back({place, num_bytes});
  return as_os_error([&] {
    GilReleased nogil;  // as above
    return Spread{make_memory(mapper_for(reader), std::move(pieces), descriptors), reader};
  });
}

}  // namespace

void bind_spread_memory(py::module_& m) {
  py::class_<Spread>(m, "SpreadMemory",
                     "One range of addresses over equal pieces of memory on several GPUs, which one of them reads; on "
                     "the host where reader is -1. OSError, CudaError, InvalidArgumentError: there is none, or it "
                     "cannot be read.")
      .def(py::init(&take), py::arg("places"), py::arg("num_bytes"), py::arg("reader"))
      .def_static("receive", &receive, py::arg("pieces"), py::arg("descriptors"), py::arg("reader"),
                  "Maps the pieces that another one describes, whose descriptors stay open.")
      .def_property_readonly(
          "pieces",
          [](const Spread& self) {
            std::vector<PieceTuple> out;
            for (const MemoryPiece& piece : self.memory->pieces()) out.emplace_back(piece.place, piece.num_bytes);
            return out;
          },
          "(GPU, bytes) of each piece.")
      .def(
          "share", [](const Spread& self) { return as_os_error([&] { return self.memory->share(); }); },
          "A new descriptor of each piece, which the caller closes.")
      .def(
          "tensor",
          [](const Spread& self) {
            Tensor tensor{self.memory->begin(), kUInt8, {static_cast<int64_t>(self.memory->num_bytes())}, self.memory};
            return to_python(std::move(tensor), self.reader);
          },
          "uint8 [bytes of all pieces], a DLPack capsule of the reader's that keeps the memory.");
}

}  // namespace gld
