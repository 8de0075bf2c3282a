#include "ordering/stream_blocks.h"

#include <algorithm>
#include <vector>

#include "common/error.h"

namespace gld {
namespace {

template <typename Id>
class Stream {
 public:
  Stream(const StreamedGraph& graph, const Tensor& groups, int num_groups, int num_blocks, double slack, int32_t* out)
      : offsets_(graph.offsets.as<int64_t>()),
        neighbors_(graph.neighbors.as<Id>()),
        weights_(graph.weights.as<int64_t>()),
        groups_(groups.as<int32_t>()),
        num_nodes_(groups.numel()),
        num_edges_(graph.neighbors.numel()),
        num_blocks_(num_blocks),
        blocks_(out),
        loads_(static_cast<size_t>(num_groups) * static_cast<size_t>(num_blocks), 0),
        capacities_(static_cast<size_t>(num_groups), 0),
        counts_(static_cast<size_t>(num_blocks), 0) {
    for (int64_t v = 0; v < num_nodes_; ++v) {
      if (groups_[v] < 0 || groups_[v] >= num_groups)
        throw InvalidArgument(message("groups[", v, "]=", groups_[v], ": expected 0 <= group < ", num_groups));
      if (weights_[v] < 0) throw InvalidArgument(message("weights[", v, "]=", weights_[v], ": expected at least 0"));
      capacities_[static_cast<size_t>(groups_[v])] += static_cast<double>(weights_[v]);
    }
    for (double& capacity : capacities_) capacity *= (1 + slack) / num_blocks;
    std::fill(blocks_, blocks_ + num_nodes_, -1);
  }

  void pass() {
    for (int64_t v = 0; v < num_nodes_; ++v) {
      if (blocks_[v] >= 0) loads_[static_cast<size_t>(blocks_[v])] -= weights_[v];
      count_neighbors(v);
      const int32_t block = choose(groups_[v], weights_[v]);
      blocks_[v] = block;
      loads_[static_cast<size_t>(block)] += weights_[v];
    }
  }

 private:
  void count_neighbors(int64_t v) {
    std::fill(counts_.begin(), counts_.end(), 0);
    const int32_t first = groups_[v] * num_blocks_;
    const int64_t begin = offsets_[v], end = offsets_[v + 1];
    if (begin < 0 || end < begin || end > num_edges_)
      throw InvalidArgument(message("offsets[", v, "]: expected to ascend from 0 to ", num_edges_));
    for (int64_t e = begin; e < end; ++e) {
      const int64_t other = static_cast<int64_t>(neighbors_[e]);
      if (other < 0 || other >= num_nodes_)
        throw UnknownId(message("neighbors[", e, "]=", other, ": expected 0 <= id < ", num_nodes_));
      if (other != v && groups_[other] == groups_[v] && blocks_[other] >= 0)
        ++counts_[static_cast<size_t>(blocks_[other] - first)];
    }
  }

  // The block of the best score; of equal ones the lighter, of equally light ones the first.
  int32_t choose(int32_t group, int64_t weight) const {
    const double capacity = capacities_[static_cast<size_t>(group)];
    const int64_t* loads = loads_.data() + static_cast<int64_t>(group) * num_blocks_;
    int best = -1, lightest = 0;
    double best_score = -1;
    for (int b = 0; b < num_blocks_; ++b) {
      if (loads[b] < loads[lightest]) lightest = b;
      if (static_cast<double>(loads[b] + weight) > capacity) continue;
      const double score = static_cast<double>(counts_[static_cast<size_t>(b)]) *
                           (1 - static_cast<double>(loads[b]) / std::max(capacity, 1.0));
      if (score > best_score || (score == best_score && loads[b] < loads[best])) best = b, best_score = score;
    }
    return group * num_blocks_ + (best >= 0 ? best : lightest);
  }

  const int64_t* offsets_;
  const Id* neighbors_;
  const int64_t* weights_;
  const int32_t* groups_;
  const int64_t num_nodes_, num_edges_;
  const int num_blocks_;
  int32_t* blocks_;
  std::vector<int64_t> loads_;
  std::vector<double> capacities_;
  std::vector<int64_t> counts_;
};

}  // namespace

Tensor stream_blocks(const StreamedGraph& graph, const Tensor& groups, int num_groups, int num_blocks, int num_passes,
                     double slack) {
  const int64_t num_nodes = groups.numel();
  check_vector(groups, kInt32, num_nodes, "groups");
  check_vector(graph.offsets, kInt64, num_nodes + 1, "offsets");
  check_vector(graph.weights, kInt64, num_nodes, "weights");
  check_index_vector(graph.neighbors, "neighbors");
  if (num_groups < 1 || num_blocks < 1 || num_passes < 1)
    throw InvalidArgument(message("num_groups, num_blocks, num_passes: expected at least 1, got ", num_groups, ", ",
                                  num_blocks, ", ", num_passes));
  Tensor blocks = empty({num_nodes}, kInt32);
  dispatch_index(graph.neighbors.dtype, "neighbors", [&](auto type) {
    Stream<decltype(type)> stream(graph, groups, num_groups, num_blocks, slack, blocks.as<int32_t>());
    for (int pass = 0; pass < num_passes; ++pass) stream.pass();
  });
  return blocks;
}

}  // namespace gld
