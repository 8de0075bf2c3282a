// Conversion between Python tensors and gld::Tensor by DLPack, without linking torch.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "common/cuda_stream.h"
#include "common/tensor.h"

namespace gld {

// Borrows the memory of any object with `__dlpack__` (torch.Tensor, numpy.ndarray): contiguous, on the host. Must be
// called with the GIL held; the returned view may be dropped without it. `name` is the argument's name in errors.
Tensor from_python(const pybind11::handle& object, const char* name);
// None gives an undefined Tensor.
Tensor from_python_optional(const pybind11::handle& object, const char* name);

// The same of memory that kernels on a GPU can read: its own or a peer's, or pinned memory of the host. The producer is
// not waited for: its work is on the stream that the kernels will be on. Where the producer says that the memory is the
// GPU's own that is believed; of any other the driver is asked, which takes microseconds. Device -1 is the host.
Tensor from_python_on(const pybind11::handle& object, const char* name, int device);
Tensor from_python_optional_on(const pybind11::handle& object, const char* name, int device);

// Whether a tensor says that it lies in the GPU's own memory.
bool lies_on(const pybind11::handle& object, int device);

// A DLPack capsule over the tensor's memory; `torch.from_dlpack(capsule)` makes a tensor that keeps it alive. None for
// an undefined tensor. `device` is the GPU whose memory it is for those who use it, or kHost.
pybind11::object to_python(Tensor tensor, int device = kHost);

}  // namespace gld

// What a bound function gives back is turned into capsules, in tuples, vectors and pairs too. Arguments are not taken
// so: a caster does not know their names, which errors tell.
template <>
struct pybind11::detail::type_caster<gld::Tensor> {
  static constexpr auto name = const_name("Capsule | None");
  static handle cast(gld::Tensor tensor, return_value_policy, handle) {
    return gld::to_python(std::move(tensor)).release();
  }
};
