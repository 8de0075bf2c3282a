// A graph of two edge types, and the comparison of batches of it.
#pragma once
#include <cstdint>
#include <vector>

#include "arrays.h"
#include "sampling/batch_builder.h"
#include "sampling/methods.h"

namespace gld::test {

constexpr int64_t kUsers = 1500, kItems = 400, kLikes = 12000, kKnows = 9000, kTimes = 1000;

// Every method of the list, with replacement too where it has that.
inline std::vector<DrawMethod> every_method(TimeRule times) {
  std::vector<DrawMethod> found;
  for (size_t i = 0; i < Methods::kTraits.size(); ++i)
    for (bool replace : {false, true})
      if (!replace || Methods::kTraits[i].may_replace) found.push_back({static_cast<Method>(i), replace, times});
  return found;
}

struct Typed {
  Csr likes, knows;  // users to items, users to users
};

// What edges carry, where a draw needs it: a fifth of the weights are 0.
inline EdgeData edge_data(int64_t num_edges, DrawMethod how) {
  EdgeData data;
  if (traits_of(how.method).reads_weights) {
    std::vector<float> weights;
    for (int64_t number : random_numbers(num_edges, 5, 65)) weights.push_back(static_cast<float>(number));
    data.weights = tensor(weights, {Kind::kFloat, 32});
  }
  if (how.times != TimeRule::kIgnore) data.times = ids(random_numbers(num_edges, kTimes, 66));
  return data;
}

inline Typed typed_graph(DrawMethod how, ThreadPool& pool) {
  std::vector<int64_t> hub = random_numbers(kKnows, kUsers, 63);  // a third of the edges leave one user
  for (int64_t e = 0; e < kKnows / 3; ++e) hub[e] = 7;
  Typed graph{
      build_csr(ids(random_numbers(kLikes, kUsers, 61)), ids(random_numbers(kLikes, kItems, 62)),
                edge_data(kLikes, how), kUsers, kItems, pool),
      build_csr(ids(hub), ids(random_numbers(kKnows, kUsers, 64)), edge_data(kKnows, how), kUsers, kUsers, pool)};
  if (!traits_of(how.method).reads_weights) return graph;
  return {with_sums(graph.likes, pool), with_sums(graph.knows, pool)};
}

inline bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return false;
  return true;
}

inline bool equal(const SampledSubgraph& a, const SampledSubgraph& b) {
  return equal(a.nodes, b.nodes) && equal(a.rows, b.rows) && equal(a.cols, b.cols) && equal(a.edge_ids, b.edge_ids) &&
         equal(a.trees, b.trees) && a.num_sampled_nodes == b.num_sampled_nodes &&
         a.num_sampled_edges == b.num_sampled_edges;
}

}  // namespace gld::test
