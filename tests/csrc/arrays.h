// Arrays and graphs for tests.
#pragma once
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "common/rng.h"
#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"
#include "graph/weights.h"

namespace gld::test {

template <typename T>
Tensor tensor(const std::vector<T>& values, DType dtype) {
  Tensor out = empty({static_cast<int64_t>(values.size())}, dtype);
  if (!values.empty()) std::memcpy(out.data, values.data(), out.nbytes());
  return out;
}
inline Tensor ids(const std::vector<int64_t>& values) { return tensor(values, kInt64); }
inline Tensor ids32(const std::vector<int32_t>& values) { return tensor(values, kInt32); }

template <typename T>
std::vector<T> values(const Tensor& tensor) {
  return {tensor.as<T>(), tensor.as<T>() + tensor.numel()};
}

// Same dtype, shape and bytes; two undefined tensors are the same.
inline bool same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.dtype == b.dtype && a.shape == b.shape && (a.numel() == 0 || std::memcmp(a.data, b.data, a.nbytes()) == 0);
}

// `count` numbers below `bound`, the same in every run.
inline std::vector<int64_t> random_numbers(int64_t count, int64_t bound, uint64_t key) {
  std::vector<int64_t> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = NodeStream(key, i).below(0, bound);
  return out;
}

// Random edges between `num_nodes` nodes, an eighth of them from node 0; multi-edges and self loops happen.
inline Csr random_csr(int64_t num_nodes, int64_t num_edges, uint64_t key, ThreadPool& pool) {
  std::vector<int64_t> row = random_numbers(num_edges, num_nodes, key);
  for (int64_t e = 0; e < num_edges / 8; ++e) row[e] = 0;
  return build_csr(ids(row), ids(random_numbers(num_edges, num_nodes, key + 1)), {}, num_nodes, num_nodes, pool);
}

// The graph with the sums that weighted sampling reads.
inline Csr with_sums(Csr csr, ThreadPool& pool) {
  std::tie(csr.weight_sums, csr.positive_counts) = sum_weights(csr.indptr, csr.weights, pool);
  return csr;
}

}  // namespace gld::test
