// The picks of one node in a kernel: those of the CPU's pickers (cpu/pick_block.h), made one by one where they do not
// depend on each other, so that a thread serves an edge and not a node; where they do, a thread serves a node, and a
// group of threads a node of many neighbors.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "sampling/candidates.h"
#include "sampling/cuda/long_rows.h"
#include "sampling/methods.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/pickers.h"

namespace gld {

struct NodePicker {
  RowOffsets row_at;
  EdgeColumns edges;
  const int64_t* edge_times;  // read by a TimeRule alone
  int64_t fanout;
  DrawMethod how;

  NodePicker(const Csr& csr, int64_t fanout, DrawMethod how)
      : row_at(csr), edges(csr), edge_times(csr.times.as<int64_t>()), fanout(fanout), how(how) {}

  // Whether picks of long rows depend on each other: each is drawn from what the ones before left.
  GLD_HOST_DEVICE bool draws_together() const {
    return fanout != kTakeAll && !how.replace && how.times != TimeRule::kLatest;
  }

  // Whether those of long rows may be left to finish_long().
  GLD_HOST_DEVICE bool shares_long_rows() const {
    return draws_together() &&
           with_method(how.method, [](auto method) { return LongRow<decltype(method)>::kIsShared; });
  }

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
    return with_method(how.method, [&](auto method) -> int64_t {
      using M = decltype(method);
      if constexpr (M::kTraits.may_replace)
        if (how.replace && fanout != kTakeAll) return M::pick_one(edges, stream, from, pick);
      return M::drawable(edges, from, pick);
    });
  }

  // All `fanout` positions, relative to from.start. `scratch` has room for one number of 64 bits per pick. Where it
  // may, it leaves some of a long row to finish_long(): false then.
  GLD_HOST_DEVICE bool pick_together(const PickStream& stream, Candidates from, int64_t* positions, void* scratch,
                                     bool may_leave) const {
    return with_method(how.method, [&](auto method) {
      using M = decltype(method);
      static_assert(sizeof(typename M::Scratch) <= sizeof(uint64_t));
      auto* memory = static_cast<typename M::Scratch*>(scratch);
      if constexpr (LongRow<M>::kIsShared)
        if (may_leave && from.count > LongRow<M>::kLongest)
          return LongRow<M>::begin(edges, stream, from, fanout, positions, memory);
      M::pick_some(edges, stream, from, fanout, positions, memory);
      return true;
    });
  }

  // What that has left, by a group of threads; `positions` and `scratch` are as it has left them.
  template <typename Group>
  GLD_HOST_DEVICE void finish_long(Group& group, const PickStream& stream, Candidates from, int64_t* positions,
                                   void* scratch) const {
    with_method(how.method, [&](auto method) {
      using M = decltype(method);
      if constexpr (LongRow<M>::kIsShared)
        LongRow<M>::finish(group, edges, stream, from, fanout, positions, static_cast<typename M::Scratch*>(scratch));
    });
  }

 private:
  GLD_HOST_DEVICE int64_t num_drawable(Candidates from) const {
    return with_method(how.method, [&](auto method) { return decltype(method)::num_drawable(edges, from); });
  }
};

}  // namespace gld
