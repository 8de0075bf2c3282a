// A frontier divided among its owners, and their answers put back in its order, as chains of launches: what
// split_by_owner() and stitch_neighbors() make on the host, bit by bit (routing/split.h).
#pragma once
#include <cstdint>
#include <vector>

#include "common/cuda/block_layout.h"
#include "common/cuda/group_scan.h"
#include "routing/cuda/split_steps.h"
#include "routing/cuda/stitch_steps.h"
#include "routing/split.h"

namespace gld {

// Scratch memory of a split; offsets in bytes.
struct SplitLayout {
  size_t owners = 0, rows = 0, tile_sums = 0;
  size_t num_bytes = 0;

  SplitLayout(int64_t num_ids, int64_t num_partitions) {
    BlockLayout scratch;
    owners = scratch.take<int32_t>(num_ids);
    rows = scratch.take<int64_t>(num_ids);
    tile_sums = scratch.take<uint64_t>(TileSums::num_words(num_ids * num_partitions));
    num_bytes = scratch.num_bytes;
  }
};

// Fills `out`; *status is lowered to the position of the first id that the book does not hold. Executors as in
// sampling/cuda/batch_chain.h.
template <typename Executor>
void run_split(const BookView& book, const Tensor& ids, const Split& out, uint64_t* status, char* scratch,
               Executor& executor) {
  const int64_t num_ids = ids.numel();
  const SplitLayout layout(num_ids, book.num_partitions);
  int32_t* owners = reinterpret_cast<int32_t*>(scratch + layout.owners);
  int64_t* rows = reinterpret_cast<int64_t*>(scratch + layout.rows);
  executor.fill(status, 0xFF, sizeof(uint64_t));
  executor.for_each(num_ids, LocateIds{book, IdReader(ids), num_ids, owners, rows, status});
  run_scan(executor, num_ids * book.num_partitions,
           PlaceIds{IdReader(ids), num_ids, book.num_partitions, owners, rows, out.ids.as<int64_t>(),
                    out.rows.as<int64_t>(), out.positions.as<int64_t>(), out.offsets.as<int64_t>()},
           reinterpret_cast<uint64_t*>(scratch + layout.tile_sums));
}

// Scratch memory of a stitch; offsets in bytes.
struct StitchLayout {
  size_t bucketed = 0;              // int64 [num_ids], counts in the order of the buckets
  size_t sources = 0, targets = 0;  // int64 [num_ids + 1], neighbors before each, in that order and in that of the ids
  size_t tile_sums = 0;
  size_t num_bytes = 0;

  explicit StitchLayout(int64_t num_ids) {
    BlockLayout scratch;
    bucketed = scratch.take<int64_t>(num_ids);
    sources = scratch.take<int64_t>(num_ids + 1);
    targets = scratch.take<int64_t>(num_ids + 1);
    tile_sums = scratch.take<uint64_t>(TileSums::num_words(num_ids));
    num_bytes = scratch.num_bytes;
  }
};

// Answers to a split, `offsets` on the host.
struct StitchInput {
  Tensor positions, offsets;
  std::vector<NeighborPart> parts;
};

template <typename Executor>
class StitchChain {
 public:
  StitchChain(const StitchInput& input, const Neighbors& out, StitchStatus* status, char* scratch, Executor& executor)
      : input_(input),
        out_(out),
        num_ids_(input.positions.numel()),
        status_(status),
        bucketed_(at(scratch, StitchLayout(num_ids_).bucketed)),
        sources_(at(scratch, StitchLayout(num_ids_).sources)),
        targets_(at(scratch, StitchLayout(num_ids_).targets)),
        tile_sums_(reinterpret_cast<uint64_t*>(scratch + StitchLayout(num_ids_).tile_sums)),
        executor_(executor) {}

  void run() {
    int64_t* counts = out_.counts.as<int64_t>();
    executor_.fill(status_, 0xFF, sizeof(StitchStatus));
    executor_.fill(counts, 0xFF, static_cast<size_t>(num_ids_) * sizeof(int64_t));
    for (size_t p = 0; p < input_.parts.size(); ++p) collect_counts(p);
    run_scan(executor_, num_ids_, SumCounts{num_ids_, bucketed_, sources_, sources_ + num_ids_}, tile_sums_);
    run_scan(executor_, num_ids_, SumCounts{num_ids_, counts, targets_, targets_ + num_ids_}, tile_sums_);
    for (size_t p = 0; p < input_.parts.size(); ++p) check_part(p);
    for (size_t p = 0; p < input_.parts.size(); ++p) move_neighbors(p);
  }

 private:
  static int64_t* at(char* scratch, size_t offset) { return reinterpret_cast<int64_t*>(scratch + offset); }
  int64_t first(size_t part) const { return input_.offsets.as<int64_t>()[part]; }
  int64_t bucket_size(size_t part) const { return first(part + 1) - first(part); }

  void collect_counts(size_t p) {
    const NeighborPart& part = input_.parts[p];
    const int64_t num_neighbors = part.neighbors.defined() ? part.neighbors.numel() : 0;
    executor_.for_each(bucket_size(p),
                       CollectCounts{IdReader(part.counts), first(p), bucket_size(p), num_neighbors, num_ids_,
                                     input_.positions.as<int64_t>(), bucketed_, out_.counts.as<int64_t>(), status_});
  }

  void check_part(size_t p) {
    const Tensor& neighbors = input_.parts[p].neighbors;
    if (!neighbors.defined()) return;  // nor is there a bucket
    executor_.for_each(
        1, CheckPart{static_cast<int64_t>(p), first(p), first(p + 1), neighbors.numel(), sources_, status_});
  }

  void move_neighbors(size_t p) {
    const NeighborPart& part = input_.parts[p];
    if (!part.neighbors.defined()) return;
    executor_.for_each(part.neighbors.numel(),
                       MoveNeighbors{first(p), bucket_size(p), part.neighbors.numel(), input_.positions.as<int64_t>(),
                                     sources_, targets_, IdReader(part.neighbors), IdReader(part.edge_ids),
                                     IdWriter(out_.neighbors), IdWriter(out_.edge_ids), status_});
  }

  const StitchInput& input_;
  const Neighbors& out_;
  const int64_t num_ids_;
  StitchStatus* status_;
  int64_t *bucketed_, *sources_, *targets_;
  uint64_t* tile_sums_;
  Executor& executor_;
};

}  // namespace gld
