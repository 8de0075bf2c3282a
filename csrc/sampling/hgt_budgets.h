// Budgets of HGT sampling: how much each node that a batch has not taken yet is connected to those that it has.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "sampling/relabel_table.h"

namespace gld {

// What one node drew of neighbors of one type, as `add` takes it: counts int64 [n], neighbors int32 or int64
// [sum of counts], global ids, grouped by node.
struct DrawnNeighbors {
  int node_type;  // of the neighbors
  Tensor counts, neighbors;
};

// The budgets of one batch (Hu, Dong, Wang, Sun: "Heterogeneous Graph Transformer", WWW 2020, Algorithms 1 and 2). One
// batch at a time, one thread at a time; what it allocates it keeps for the next batch. Ids are global. Nothing depends
// on the pool: its threads divide the node types among each other.
class HgtBudgets {
 public:
  // num_nodes: by node type. A type of at most `most_dense` nodes has a table of 4 bytes a node, which is fast; one of
  // more nodes has a table of the size of the batch.
  explicit HgtBudgets(std::vector<int64_t> num_nodes, int64_t most_dense = kDenseRelabelLimit);
  ~HgtBudgets();
  HgtBudgets(const HgtBudgets&) = delete;
  HgtBudgets& operator=(const HgtBudgets&) = delete;

  // Forgets the last batch, whatever became of it.
  void begin();

  // Takes nodes (int32 or int64 [n]) into the batch, whether they have a budget or not. Gives those that it did not
  // have yet, int64, in order of first appearance. Throws UnknownId of an id outside the graph; the batch is void then.
  Tensor take(int node_type, const Tensor& ids);

  // Adds 1 / counts[i] to the budget of each neighbor that was drawn for node i, as often as it was, unless the batch
  // has taken it. Budgets are doubles, and sums are formed in the order of `drawn` and within it in that of the
  // neighbors. Throws InvalidArgument of counts that are negative or do not sum up to the neighbors, and UnknownId of a
  // neighbor outside the graph; the batch is void then.
  void add(const std::vector<DrawnNeighbors>& drawn, ThreadPool& pool);

  // Takes counts[t] nodes of each type t that have a budget, all where there are fewer: without replacement, each the
  // next with a probability proportional to the square of its budget. Gives them by type, int64, in the order of the
  // draws, which are a function of keys[t], of the nodes' ids and of their budgets. Throws InvalidArgument of a
  // negative count, and unless there is a count and a key for each type.
  std::vector<Tensor> pick(const std::vector<int64_t>& counts, const std::vector<uint64_t>& keys, ThreadPool& pool);

  int64_t num_types() const { return static_cast<int64_t>(types_.size()); }

 private:
  class TypeBudgets;
  TypeBudgets& of_type(int node_type);

  std::vector<std::unique_ptr<TypeBudgets>> types_;
};

}  // namespace gld
