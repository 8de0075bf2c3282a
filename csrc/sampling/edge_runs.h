// The edges of a batch as they are sampled, until they are written where they are wanted.
//
// Behind one another lie the edges of the first node of the first hop's frontier, of the second, and so on: of each
// edge the neighbor's local id, in 4 bytes, and of each node how many edges it has. That is a quarter of `edge_index`,
// which is thus written once, when its place is known.
#pragma once
#include <cstdint>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

class EdgeRuns {
 public:
  void clear();  // starts anew; what was shared before stays with its holder

  // Adds room for the edges of the nodes [first_node, first_node + num_nodes), so many in all. Both arrays are to be
  // filled: the nodes' numbers of edges, and the neighbors' local ids.
  struct Added {
    uint32_t* counts;
    uint32_t* rows;
  };
  Added extend(int64_t first_node, int64_t num_nodes, int64_t num_edges);

  int64_t size() const { return num_edges_; }
  // Writes them as int64 [2, size]: neighbors, then the nodes that they were sampled for. Many are written past the
  // caches, see common/copy_bytes.h. Without a pool, by the calling thread.
  void write(int64_t* edge_index, ThreadPool* pool = nullptr) const;
  // These edges for another holder; what is added here later is not among them.
  EdgeRuns share() const { return *this; }

 private:
  struct Run {
    int64_t first_node, num_nodes;
  };

  std::vector<Run> runs_;
  Tensor rows_, counts_;  // uint32, with room for more
  int64_t num_edges_ = 0, num_nodes_ = 0;
  int64_t most_edges_ = 0, most_nodes_ = 0;  // that a batch had
};

}  // namespace gld
