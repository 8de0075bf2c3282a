// Approximate personalised PageRank by forward push.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"
#include "graph/csr.h"

namespace gld {

struct PprScores {
  Tensor counts;  // int64 [n], nodes found for each seed
  Tensor nodes;   // int64 [sum of counts], global ids, grouped by seed in the order asked
  Tensor scores;  // float32 [sum of counts]
};

// For each of `seeds` (global, int32 or int64 [n]) the at most `top_k` nodes of the highest scores, by (score
// descending, id ascending); the scores are lower bounds of the PageRank of walks that start at the seed and stop with
// probability `alpha` at each step.
//
// Andersen, Chung, Lang: "Local graph partitioning using PageRank vectors" (FOCS 2006), section 3, for the walk that
// does not rest: pushing node u moves alpha * r(u) to its score and spreads the rest of its residual r(u) evenly over
// its edges. Nodes are pushed first in, first out, while r(u) > epsilon * degree(u), so at the end r(u) <= epsilon *
// degree(u) everywhere; the seed is pushed at least once, so that it is always found. A walk that reaches a node
// without neighbors stays there: all its residual becomes score.
//
// The graph must have as many rows as columns. A seed outside it throws UnknownId, as does a neighbor; a
// row whose offsets are not in order within the edges PartitionFormat. A seed's result depends neither on
// the other seeds nor on the pool. Takes time in O(1 / (epsilon * alpha) + degree) a seed, whatever the graph's size.
PprScores ppr_topk(const Csr& csr, const Tensor& seeds, double alpha, double epsilon, int64_t top_k, ThreadPool& pool);

// The same of a graph whose rows lie elsewhere, bit by bit: nodes are pushed in the same order, whenever their rows
// come.
//
//   while (lacking = advance(), there is some) { ask for it; give_degrees(); give_rows(); }
//
// One thread at a time. What was given is kept for all seeds, 8 bytes an edge.
class PprPushes {
 public:
  struct Lacking {
    Tensor degrees, rows;  // int64, ids of nodes, ascending
    bool is_empty() const { return degrees.numel() + rows.numel() == 0; }
  };
  // Throws as ppr_topk.
  PprPushes(const Tensor& seeds, int64_t num_nodes, double alpha, double epsilon);
  ~PprPushes();
  PprPushes(const PprPushes&) = delete;
  PprPushes& operator=(const PprPushes&) = delete;

  // Pushes from every seed as far as it goes. What is missing then: rows of all nodes that wait, and the degrees of the
  // neighbors of those whose rows are there.
  Lacking advance(ThreadPool& pool);
  // ids, degrees int64 [n]. Throws InvalidArgument of a negative degree and of lengths that differ.
  void give_degrees(const Tensor& ids, const Tensor& degrees);
  // ids, counts int64 [n], neighbors int64 [sum of counts]. Throws UnknownId of a neighbor outside the graph, and
  // InvalidArgument of lengths, or of a count that is not the node's degree.
  void give_rows(const Tensor& ids, const Tensor& counts, const Tensor& neighbors);
  // When nothing is missing.
  PprScores best(int64_t top_k, ThreadPool& pool) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace gld
