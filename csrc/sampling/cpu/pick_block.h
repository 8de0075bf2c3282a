// The picking of one block of nodes on the CPU, shared by the one-hop sampler and the batch builder.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/rng.h"
#include "common/tensor.h"
#include "graph/csr.h"
#include "sampling/candidates.h"
#include "sampling/cpu/labor_row.h"
#include "sampling/methods.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/pickers.h"
#include "sampling/weighted_picks.h"

namespace gld {

// Beyond this fan-out a hash table finds repeated picks faster than a scan of them.
constexpr int64_t kScanLimit = 96;
constexpr int64_t kPrefetchRows = 16;

// Candidates where times do not matter: the whole row.
struct WholeRows {
  RowOffsets row_at;

  Candidates operator()(int64_t row, int64_t) const { return whole_row(row_at[row]); }
};

// Candidates of a node with a time: the row's edges that are not later. Rows are in the order of times.
struct RowsUntil {
  RowOffsets row_at;
  const int64_t* edge_times;
  const int64_t* node_times;  // of the frontier

  Candidates operator()(int64_t row, int64_t i) const { return row_until(row_at[row], edge_times, node_times[i]); }
};

// Calls body(pointer) with scratch memory for `count` values, on the stack for the fan-outs people use.
template <typename Value, typename Body>
inline void with_scratch(int64_t count, Body&& body) {
  if (count <= kScanLimit) {
    Value values[kScanLimit];
    return body(values);
  }
  std::vector<Value> values(count);
  body(values.data());
}

// Some positions of a row, at most `capacity`: open addressing, at most half full. A row of a hub has hundreds of
// picks.
class PickTable {
 public:
  explicit PickTable(int64_t capacity) {
    while (int64_t{1} << bits_ < 2 * capacity) ++bits_;
    slots_.assign(size_t{1} << bits_, kFree);
  }
  bool contains(int64_t position) const { return slots_[find(position)] == position; }
  void insert(int64_t position) { slots_[find(position)] = position; }

 private:
  static constexpr int64_t kFree = -1;

  // Where the position is, or would be.
  size_t find(int64_t position) const {
    size_t at = static_cast<uint64_t>(position) * kGolden >> (64 - bits_);
    while (slots_[at] != position && slots_[at] != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  int bits_ = 6;
  std::vector<int64_t> slots_;
};

// Calls body(contains, record), which remember picks out of `count` in the way that suits (see pickers.h).
template <typename Body>
inline void with_memory_of_picks(int64_t count, int64_t fanout, const int64_t* positions, Body&& body) {
  if (count <= 64) {
    uint64_t picked = 0;
    return body([&picked](int64_t, int64_t position) { return (picked >> position & 1) != 0; },
                [&picked](int64_t, int64_t position) { picked |= uint64_t{1} << position; });
  }
  if (fanout <= kScanLimit) return body(ScanOfPicks<int64_t>{positions}, RecordNothing{});
  PickTable picked(fanout);
  body([&picked](int64_t, int64_t position) { return picked.contains(position); },
       [&picked](int64_t, int64_t position) { picked.insert(position); });
}

// A picker has: candidates(row, i) of the i-th node of the frontier, num_picks(candidates), and pick(stream,
// candidates, positions), which writes num_picks positions relative to candidates.start. prefetch(candidates) asks for
// what pick() is going to read, kPicksAhead nodes before. candidates() throws PartitionFormat where a row's offsets are
// not in order within the edges.
constexpr int64_t kPicksAhead = 6;

// The picker of a method. Those that have a faster way on the CPU than that of methods.h specialize it.
template <typename M, typename Rows>
struct PickerOf {
  Rows rows;
  EdgeColumns edges;
  int64_t fanout;
  bool replace;

  PickerOf(const Csr& csr, const HopDraw& draw, Rows rows)
      : rows(rows), edges(csr), fanout(draw.fanout), replace(draw.how.replace) {}
  Candidates candidates(int64_t row, int64_t i) const { return rows(row, i); }
  int64_t num_picks(Candidates from) const { return pick_count(M::num_drawable(edges, from), fanout, replace); }
  void prefetch(Candidates) const {}
  void pick(const PickStream& stream, Candidates from, int64_t* positions) const {
    const int64_t num_drawable = M::num_drawable(edges, from);
    if (num_drawable == 0) return;
    if constexpr (M::kTraits.may_replace) {
      if (replace && fanout != kTakeAll) {
        for (int64_t i = 0; i < fanout; ++i) positions[i] = M::pick_one(edges, stream, from, i);
        return;
      }
    }
    if (fanout != kTakeAll && num_drawable > fanout)
      return with_scratch<typename M::Scratch>(
          fanout, [&](auto* scratch) { M::pick_some(edges, stream, from, fanout, positions, scratch); });
    for (int64_t i = 0; i < num_drawable; ++i) positions[i] = M::drawable(edges, from, i);
  }
};

template <typename Rows>
struct PickerOf<methods::Uniform, Rows> {
  Rows rows;
  int64_t fanout;
  bool replace;

  PickerOf(const Csr&, const HopDraw& draw, Rows rows) : rows(rows), fanout(draw.fanout), replace(draw.how.replace) {}
  Candidates candidates(int64_t row, int64_t i) const { return rows(row, i); }
  int64_t num_picks(Candidates from) const { return pick_count(from.count, fanout, replace); }
  void prefetch(Candidates) const {}
  void pick(NodeStream stream, Candidates from, int64_t* positions) const {
    if (fanout == kTakeAll) return pick_all(from.count, positions);
    if (replace) {
      if (from.count > 0) pick_with_replacement(stream, from.count, fanout, positions);
      return;
    }
    if (from.count <= fanout) return pick_all(from.count, positions);
    if (fanout <= kScanLimit) return pick_without_replacement(stream, from.count, fanout, positions);
    with_memory_of_picks(from.count, fanout, positions, [&](auto contains, auto record) {
      pick_without_replacement(stream, from.count, fanout, positions, contains, record);
    });
  }
};

// Sums and counts are within rows, and candidates begin where their row does.
template <typename Rows>
struct PickerOf<methods::Weighted, Rows> {
  Rows rows;
  const double* sums;
  WeightReader weight_at;
  const int32_t* positive_counts;  // null: all weights are positive
  int64_t fanout;
  bool replace;

  PickerOf(const Csr& csr, const HopDraw& draw, Rows rows)
      : rows(rows),
        sums(csr.weight_sums.as<double>()),
        weight_at(csr.weights),
        positive_counts(csr.positive_counts.defined() ? csr.positive_counts.as<int32_t>() : nullptr),
        fanout(draw.fanout),
        replace(draw.how.replace) {}
  Candidates candidates(int64_t row, int64_t i) const { return rows(row, i); }
  int64_t num_picks(Candidates from) const { return pick_count(num_positive(positive_counts, from), fanout, replace); }
  void prefetch(Candidates from) const { prefetch_values(sums, from); }
  void pick(NodeStream stream, Candidates from, int64_t* positions) const {
    const int64_t num_candidates = num_positive(positive_counts, from);
    if (num_candidates == 0) return;
    const WeightedRow row{sums + from.start, weight_at, from.start, from.count};
    if (replace && fanout != kTakeAll) {
      for (int64_t i = 0; i < fanout; ++i) positions[i] = pick_by_weight(stream, row, i);
      return;
    }
    if (fanout == kTakeAll || num_candidates <= fanout)
      return pick_all_positive(counts_of_row(positive_counts, from), from.count, positions);
    with_memory_of_picks(from.count, fanout, positions, [&](auto contains, auto record) {
      with_scratch<uint64_t>(fanout, [&](uint64_t* clocks) {
        pick_weighted_without_replacement(stream, row, fanout, positions, clocks, contains, record);
      });
    });
  }
};

template <typename Rows>
struct PickerOf<methods::Labor, Rows> {
  Rows rows;
  IdReader neighbors;
  int64_t fanout;

  PickerOf(const Csr& csr, const HopDraw& draw, Rows rows) : rows(rows), neighbors(csr.indices), fanout(draw.fanout) {}
  Candidates candidates(int64_t row, int64_t i) const { return rows(row, i); }
  int64_t num_picks(Candidates from) const { return pick_count(from.count, fanout, false); }
  void prefetch(Candidates from) const { neighbors.prefetch(from); }
  void pick(const PickStream& stream, Candidates from, int64_t* positions) const {
    if (fanout == kTakeAll || from.count <= fanout) return pick_all(from.count, positions);
    neighbors.with_ids([&](const auto* ids) {
      pick_labor_row(stream.tree_key, stream, ids + from.start, from.count, fanout, positions);
    });
  }
};

// The last `fanout` edges that are not later than the node, in row order: ascending in time.
struct LatestPicker {
  RowsUntil rows;
  int64_t fanout;

  Candidates candidates(int64_t row, int64_t i) const {
    const Candidates until = rows(row, i);
    return last_of(until, pick_count(until.count, fanout, false));
  }
  int64_t num_picks(Candidates from) const { return from.count; }
  void prefetch(Candidates) const {}
  void pick(NodeStream, Candidates from, int64_t* positions) const { pick_all(from.count, positions); }
};

template <typename Rows, typename Body>
void with_picker_of(const Csr& csr, const HopDraw& draw, Rows rows, const Body& body) {
  with_method(draw.how.method, [&](auto method) { body(PickerOf<decltype(method), Rows>(csr, draw, rows)); });
}

// Calls body(picker) with the picker that serves the draw, which check_draw() has passed. `times` are those of the
// frontier, or null.
template <typename Body>
void with_picker(const Csr& csr, const HopDraw& draw, const int64_t* times, Body&& body) {
  const RowOffsets row_at(csr);
  if (draw.how.times == TimeRule::kIgnore) return with_picker_of(csr, draw, WholeRows{row_at}, body);
  const RowsUntil until{row_at, csr.times.as<int64_t>(), times};
  if (draw.how.times == TimeRule::kLatest) return body(LatestPicker{until, draw.fanout});
  with_picker_of(csr, draw, until, body);
}

// The candidates of nodes [begin, end) of the frontier, into out[0 ...]; `row_of(i)` is the row of node i.
template <typename Picker, typename RowOf>
inline void read_candidates(const Picker& picker, const int64_t* indptr, RowOf row_of, int64_t begin, int64_t end,
                            Candidates* out) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchRows < end) __builtin_prefetch(indptr + row_of(i + kPrefetchRows));
    *out++ = picker.candidates(row_of(i), i);
  }
}

}  // namespace gld
