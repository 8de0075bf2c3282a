// The picks of one node in a kernel: those of the CPU's pickers (cpu/pick_block.h), made one by one where they do not
// depend on each other, so that a thread serves an edge and not a node.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "sampling/candidates.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/pickers.h"
#include "sampling/weighted_picks.h"

namespace gld {

struct NodePicker {
  RowOffsets row_at;
  IdReader neighbor_at;
  const int64_t* edge_times;  // read by a TimeRule alone
  const double* sums;         // read by Method::kWeighted alone, as are the next two; see graph/weights.h
  WeightReader weight_at;
  const int32_t* positive_counts;  // null: all weights are positive
  int64_t fanout;
  DrawMethod how;

  NodePicker(const Csr& csr, int64_t fanout, DrawMethod how)
      : row_at(csr),
        neighbor_at(csr.indices),
        edge_times(csr.times.as<int64_t>()),
        sums(csr.weight_sums.as<double>()),
        weight_at(csr.weights),
        positive_counts(csr.positive_counts.as<int32_t>()),
        fanout(fanout),
        how(how) {}

  // Whether picks of long rows depend on each other: each is drawn from what the ones before left.
  bool draws_together() const { return fanout != kTakeAll && !how.replace && how.times != TimeRule::kLatest; }

  // `time` is that of the node, and ignored with the times. None where the row's offsets are damaged, and then false.
  GLD_HOST_DEVICE bool candidates(int64_t row, int64_t time, Candidates* from) const {
    RowSpan span;
    *from = {0, 0};
    if (!row_at.find(row, &span)) return false;
    *from = how.times == TimeRule::kIgnore ? whole_row(span) : row_until(span, edge_times, time);
    if (how.times == TimeRule::kLatest) *from = last_of(*from, pick_count(from->count, fanout, false));
    return true;
  }

  GLD_HOST_DEVICE int64_t num_picks(Candidates from) const {
    return pick_count(num_drawable(from), fanout, how.replace);
  }

  // Whether the picks from these candidates are made by pick_together() rather than pick_one().
  GLD_HOST_DEVICE bool is_drawn_together(Candidates from) const {
    return fanout != kTakeAll && !how.replace && num_drawable(from) > fanout;
  }

  // The pick-th of num_picks() positions, relative to from.start.
  GLD_HOST_DEVICE int64_t pick_one(const PickStream& stream, Candidates from, int64_t pick) const {
    const bool is_weighted = how.method == Method::kWeighted;
    if (how.replace && fanout != kTakeAll) {
      if (is_weighted) return pick_by_weight(stream, weighted_row(from), pick);
      return stream.below(pick, from.count);
    }
    if (!is_weighted || positive_counts == nullptr) return pick;
    return count_up_to(positive_counts + from.start, from.count, static_cast<int32_t>(pick));
  }

  // All `fanout` positions, relative to from.start. `scratch` has room for one number of 64 bits per pick.
  GLD_HOST_DEVICE void pick_together(const PickStream& stream, Candidates from, int64_t* positions,
                                     void* scratch) const {
    switch (how.method) {
      case Method::kUniform:
        return pick_without_replacement(stream, from.count, fanout, positions);
      case Method::kWeighted:
        return pick_weighted_without_replacement(stream, weighted_row(from), fanout, positions,
                                                 static_cast<uint64_t*>(scratch), ScanOfPicks<int64_t>{positions},
                                                 RecordNothing{});
      case Method::kLabor:
        return pick_labor(
            stream.tree_key, stream, [this, from](int64_t i) { return neighbor_at(from.start + i); }, from.count,
            fanout, positions, static_cast<uint64_t*>(scratch));
    }
  }

 private:
  GLD_HOST_DEVICE WeightedRow weighted_row(Candidates from) const {
    return {sums + from.start, weight_at, from.start, from.count};
  }
  GLD_HOST_DEVICE int64_t num_drawable(Candidates from) const {
    return how.method == Method::kWeighted ? num_positive(positive_counts, from) : from.count;
  }
};

}  // namespace gld
