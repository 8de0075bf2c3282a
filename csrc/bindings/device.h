// What the bindings of GPU operators share.
#pragma once
#include <pybind11/pybind11.h>

#include <vector>

#include "bindings/dlpack.h"
#include "common/cuda/block_layout.h"
#include "common/error.h"
#include "graph/csr.h"

namespace gld {

// A graph in memory that a GPU can read.
struct DeviceCsr {
  Csr csr;
  int device;
};

inline const Csr& graph_on(int device, const DeviceCsr& graph) {
  if (graph.device != device)
    throw InvalidArgument(message("graphs: expected those of GPU ", device, ", got one of GPU ", graph.device));
  return graph.csr;
}

inline std::vector<Csr> graphs_on(int device, const std::vector<const DeviceCsr*>& graphs) {
  std::vector<Csr> out;
  for (const DeviceCsr* graph : graphs) out.push_back(graph_on(device, *graph));
  return out;
}

// The tensors that a chain of kernels writes to, kept while it is launched; made with the GIL.
class Blocks {
 public:
  Blocks(const pybind11::object& result, size_t num_bytes, const pybind11::object& scratch, size_t num_scratch_bytes,
         int device)
      : result_(block_on(result, num_bytes, "result", device)),
        scratch_(block_on(scratch, num_scratch_bytes, "scratch", device)) {}

  BatchMemory memory() const { return {result_.as<char>(), scratch_.as<char>()}; }

 private:
  static Tensor block_on(const pybind11::object& memory, size_t num_bytes, const char* name, int device) {
    Tensor block = from_python_on(memory, name, device);
    if (block.nbytes() < num_bytes)
      throw InvalidArgument(message(name, ": expected at least ", num_bytes, " bytes, got ", block.nbytes()));
    return block;
  }

  Tensor result_, scratch_;
};

// Entries of int64 from the start of the block.
inline int64_t entries(size_t offset) { return static_cast<int64_t>(offset / sizeof(int64_t)); }

}  // namespace gld
