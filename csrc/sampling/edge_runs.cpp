#include "sampling/edge_runs.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/copy_bytes.h"
#include "common/error.h"
#include "common/simd.h"

namespace gld {
namespace {

constexpr DType kUInt32{Kind::kUInt, 32};
constexpr int64_t kLanes = 8;  // most nodes have few edges: so many values are written at once, whatever comes after
constexpr int64_t kPieceEdges = 1 << 15, kPieceNodes = 1 << 14;  // that a thread writes at a time

// Room for `wanted` entries in all, of which the first `size` are kept.
void reserve(Tensor& memory, int64_t size, int64_t wanted) {
  const int64_t capacity = memory.defined() ? memory.numel() : 0;
  if (wanted <= capacity) return;
  Tensor grown = empty({std::max(wanted, 2 * capacity)}, kUInt32);
  if (size > 0) std::copy_n(memory.as<uint32_t>(), size, grown.as<uint32_t>());
  memory = std::move(grown);
}

GLD_SIMD void widen(const uint32_t* from, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

GLD_SIMD void fill(int64_t* to, int64_t count, int64_t value) {
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

void write_rows(const uint32_t* rows, int64_t count, ValueWriter& out) {
  for (int64_t first = 0; first < count; first += ValueWriter::kRoom) {
    const int64_t each = std::min(ValueWriter::kRoom, count - first);
    widen(rows + first, each, out.room());
    out.advance(each);
  }
}

// Writes the positions of nodes from `node` on, each as often as it has edges.
void write_cols(const uint32_t* counts, int64_t num_nodes, int64_t node, ValueWriter& out) {
  for (int64_t i = 0; i < num_nodes; ++i, ++node) {
    int64_t left = counts[i];
    if (left <= kLanes) {
      int64_t* const to = out.room();
      for (int64_t lane = 0; lane < kLanes; ++lane) to[lane] = node;
    } else {
      for (; left > ValueWriter::kRoom; left -= ValueWriter::kRoom) {
        fill(out.room(), ValueWriter::kRoom, node);
        out.advance(ValueWriter::kRoom);
      }
      fill(out.room(), left, node);
    }
    out.advance(left);
  }
}

}  // namespace

void EdgeRuns::clear() {
  most_edges_ = std::max(most_edges_, num_edges_);
  most_nodes_ = std::max(most_nodes_, num_nodes_);
  runs_.clear();
  rows_ = counts_ = Tensor{};
  num_edges_ = num_nodes_ = 0;
}

EdgeRuns::Added EdgeRuns::extend(int64_t first_node, int64_t num_nodes, int64_t num_edges) {
  if (num_edges > std::numeric_limits<uint32_t>::max())
    throw InvalidArgument(message("batch: expected fewer than 2^32 edges of a type in a hop, got ", num_edges));
  // As many as in the largest batch so far, which is likely enough.
  reserve(rows_, num_edges_, std::max(num_edges_ + num_edges, most_edges_ + most_edges_ / 8));
  reserve(counts_, num_nodes_, std::max(num_nodes_ + num_nodes, most_nodes_ + most_nodes_ / 8));
  const Added added{counts_.as<uint32_t>() + num_nodes_, rows_.as<uint32_t>() + num_edges_};
  runs_.push_back({first_node, num_nodes});
  num_edges_ += num_edges;
  num_nodes_ += num_nodes;
  return added;
}

void EdgeRuns::write(int64_t* edge_index, ThreadPool* pool) const {
  // What one thread writes: the rows of some edges, or the columns of those of some nodes.
  struct Piece {
    int64_t first_edge, num_edges, first_count, num_counts, node;
  };
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < num_edges_; first += kPieceEdges)
    pieces.push_back({first, std::min(kPieceEdges, num_edges_ - first), 0, 0, 0});
  const uint32_t* const counts = counts_.as<uint32_t>();
  int64_t edge = 0, count = 0;
  for (const Run& run : runs_) {
    for (int64_t first = 0; first < run.num_nodes; first += kPieceNodes) {
      const int64_t num_nodes = std::min(kPieceNodes, run.num_nodes - first);
      const int64_t num_edges = std::accumulate(counts + count, counts + count + num_nodes, int64_t{0});
      pieces.push_back({edge, num_edges, count, num_nodes, run.first_node + first});
      edge += num_edges;
      count += num_nodes;
    }
  }
  const bool is_streamed = ValueWriter::streams(2 * num_edges_);
  parallel_for(pool, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      if (piece.num_counts == 0) {
        ValueWriter out(edge_index + piece.first_edge, is_streamed);
        write_rows(rows_.as<uint32_t>() + piece.first_edge, piece.num_edges, out);
        out.finish();
      } else {
        ValueWriter out(edge_index + num_edges_ + piece.first_edge, is_streamed);
        write_cols(counts + piece.first_count, piece.num_counts, piece.node, out);
        out.finish();
      }
    }
  });
}

}  // namespace gld
