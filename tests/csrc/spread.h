// Arrays and graphs in pieces, as several GPUs hold them; here in files in memory, mapped side by side.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "common/spread_memory.h"
#include "graph/csr.h"

namespace gld::test {

inline std::shared_ptr<const PieceMapper> host_mapper() { return make_host_mapper(); }

inline Tensor spread(const Tensor& array, int num_pieces) {
  if (!array.defined() || array.nbytes() == 0) return array;
  const auto memory = std::make_shared<SpreadMemory>(host_mapper(), std::vector<int>(num_pieces), array.nbytes());
  std::memcpy(memory->begin(), array.data, array.nbytes());
  return {memory->begin(), array.dtype, array.shape, memory};
}

inline Csr spread(Csr csr, int num_pieces) {
  for (Tensor* array :
       {&csr.indptr, &csr.indices, &csr.edge_ids, &csr.times, &csr.weights, &csr.weight_sums, &csr.positive_counts})
    *array = spread(*array, num_pieces);
  return csr;
}

}  // namespace gld::test
