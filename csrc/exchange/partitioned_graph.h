// A graph whose rows lie with several owners, some of them in this process, and how batches are sampled from it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/csr.h"
#include "routing/partition_book.h"
#include "sampling/batch_builder.h"
#include "sampling/neighbor_sampler.h"

namespace gld::exchange {

struct PartitionedGraph {
  std::vector<EdgeTypeSpec> edge_types;
  std::vector<std::shared_ptr<const PartitionBook>> books;      // by edge type, of the nodes whose rows its edges are
  std::vector<std::vector<std::shared_ptr<const Csr>>> pieces;  // [partition][edge type]; empty: it is asked
  std::vector<std::vector<int64_t>> fanouts;                    // [hop][edge type]; 0 skips the type in that hop
  std::vector<DrawMethod> draws;                                // by edge type
  bool with_edge_ids = false;
  int64_t seed = 0;

  int num_partitions() const { return static_cast<int>(pieces.size()); }
  bool is_here(int partition) const { return !pieces[partition].empty(); }
};

// Throws InvalidArgument unless the lists have one entry for each edge type, and books one partition for each of
// pieces.
void check_graph(const PartitionedGraph& graph);

}  // namespace gld::exchange
