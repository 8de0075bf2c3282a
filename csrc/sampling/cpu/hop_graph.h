// What one hop reads of a graph, in one piece or in several: the candidates of a frontier, and the arrays they lie in.
//
// A hop graph has: read_candidates(ids, begin, end, candidates), for nodes [begin, end) of the frontier, and afterwards
// piece(i), the piece that holds the i-th of them; positions of its candidates are within that piece's arrays.
// FrontierPicks picks among these.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "routing/partition_book.h"
#include "sampling/cpu/pick_block.h"
#include "sampling/cpu/uniform_block.h"

namespace gld {

template <typename PickerType, typename IndexType>
struct HopPiece {
  using Picker = PickerType;
  using Index = IndexType;

  Picker picker;
  const int64_t* indptr;
  const Index* indices;
  EdgeIdReader edge_id_at;
  const Csr* csr;

  HopPiece(const Csr& csr, const Picker& picker)
      : picker(picker),
        indptr(csr.indptr.as<int64_t>()),
        indices(csr.indices.as<Index>()),
        edge_id_at(csr),
        csr(&csr) {}
};

// A graph whose rows are global ids.
template <typename Piece>
class WholeHopGraph {
 public:
  using Picker = typename Piece::Picker;
  using Index = typename Piece::Index;
  static constexpr bool kInPieces = false;

  explicit WholeHopGraph(Piece piece) : piece_(std::move(piece)) {}
  const Piece& piece(int64_t) const { return piece_; }
  void read_candidates(const int64_t* ids, int64_t begin, int64_t end, Candidates* candidates) const {
    gld::read_candidates(
        piece_.picker, piece_.indptr, [ids](int64_t i) { return ids[i]; }, begin, end, candidates + begin);
  }
  bool asks_ahead() const { return gld::asks_ahead(*piece_.csr); }
  void ends_hop(bool ahead, int64_t num_rows, int64_t num_faults) const {
    if (piece_.csr->watch != nullptr) piece_.csr->watch->ends_hop(ahead, num_rows, num_faults);
  }

 private:
  Piece piece_;
};

// A graph in the pieces of a partition book. `owners` has room for one entry per node of the frontier.
template <typename Piece>
class HopGraphInPieces {
 public:
  using Picker = typename Piece::Picker;
  using Index = typename Piece::Index;
  static constexpr bool kInPieces = true;

  HopGraphInPieces(std::vector<Piece> pieces, const PartitionBook& book, int32_t* owners)
      : pieces_(std::move(pieces)), book_(book), owners_(owners) {}
  const Piece& piece(int64_t i) const { return pieces_[owners_[i]]; }
  void read_candidates(const int64_t* ids, int64_t begin, int64_t end, Candidates* candidates) const {
    int64_t rows[kLocated];
    for (int64_t first = begin; first < end; first += kLocated) {
      const int64_t count = std::min(kLocated, end - first);
      book_.locate(ids + first, count, owners_ + first, rows, first);
      for (int64_t i = 0; i < count; ++i) {
        if (i + kPrefetchRows < count)
          __builtin_prefetch(piece(first + i + kPrefetchRows).indptr + rows[i + kPrefetchRows]);
        candidates[first + i] = piece(first + i).picker.candidates(rows[i], first + i);
      }
    }
  }

  // All pieces are read alike.
  bool asks_ahead() const {
    bool any = false;
    for (const Piece& piece : pieces_) any |= gld::asks_ahead(*piece.csr);
    return any;
  }
  void ends_hop(bool ahead, int64_t num_rows, int64_t num_faults) const {
    for (const Piece& piece : pieces_)
      if (piece.csr->watch != nullptr) piece.csr->watch->ends_hop(ahead, num_rows, num_faults);
  }

 private:
  static constexpr int64_t kLocated = 1024;  // nodes that are located at a time

  std::vector<Piece> pieces_;
  const PartitionBook& book_;
  int32_t* owners_;
};

// Asks for the pages of the rows that a frontier of `count` nodes picks from, see page_watch.h.
template <typename Graph>
void ask_for_rows(const Graph& graph, const Candidates* candidates, int64_t count, bool with_edge_ids) {
  PagesAhead pages;
  for (int64_t i = 0; i < count; ++i)
    pages.add(*graph.piece(i).csr, candidates[i].start, candidates[i].count, with_edge_ids);
  pages.ask();
}

// Pickers whose draws pick_uniform_block() can do.
template <typename Picker>
constexpr bool kIsUniform = false;
template <typename Rows>
constexpr bool kIsUniform<PickerOf<methods::Uniform, Rows>> = true;

// Which of their candidates the nodes of a frontier pick, a few nodes at a time.
template <typename Graph, typename Id>
struct FrontierPicks {
  const Graph& graph;
  uint64_t key;
  const Candidates* candidates;  // per node of the frontier
  const Id* ids;                 // per node
  const int64_t* trees;          // per node, or null
  int64_t num_nodes;

  // Calls out(i, count, pick_at) for the nodes [begin, end), at most kBlockLanes of them, in their order; pick_at(j) is
  // the position of a pick relative to candidates[i].start. out.room() has place for as many picks as the next node
  // has.
  template <typename Out>
  void pick(int64_t begin, int64_t end, Out&& out) const {
    if constexpr (kIsUniform<typename Graph::Picker>) {
      const auto& picker = graph.piece(begin).picker;
      if (picker.fanout != kTakeAll && picker.fanout <= kScanLimit && pick_uniform(begin, end, out)) return;
    }
    for (int64_t i = begin; i < end; ++i) {
      if (i + kPicksAhead < num_nodes) graph.piece(i + kPicksAhead).picker.prefetch(candidates[i + kPicksAhead]);
      const auto& picker = graph.piece(i).picker;
      int64_t* const positions = out.room();
      picker.pick(stream_of(key, ids[i], trees, i), candidates[i], positions);
      out(i, picker.num_picks(candidates[i]), [positions](int64_t j) { return positions[j]; });
    }
  }

 private:
  // False, with nothing done, where a row has 2^32 edges or more: such blocks are picked node by node.
  template <typename Out>
  bool pick_uniform(int64_t begin, int64_t end, Out&& out) const {
    const auto& picker = graph.piece(begin).picker;  // those of all pieces pick alike
    const int64_t fanout = picker.fanout;
    int64_t wide[kBlockLanes] = {};
    uint64_t states[kBlockLanes];
    uint32_t degrees[kBlockLanes], picks[kScanLimit * kBlockLanes];
    int64_t all_bits = 0;
    for (int64_t i = begin; i < end; ++i) {
      wide[i - begin] = ids[i];
      degrees[i - begin] = static_cast<uint32_t>(candidates[i].count);
      all_bits |= candidates[i].count;
    }
    if (all_bits > std::numeric_limits<uint32_t>::max()) return false;
    stream_states(key, wide, trees == nullptr ? nullptr : trees + begin, end - begin, states);
    pick_uniform_block(states, degrees, fanout, picker.replace, picks);
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t* picked = picks + i - begin;
      const int64_t count = candidates[i].count;
      if (picker.replace ? count > 0 : count > fanout)
        out(i, fanout, [picked](int64_t j) { return picked[j * kBlockLanes]; });
      else if (!picker.replace)
        out(i, count, [](int64_t j) { return j; });
    }
    return true;
  }
};

}  // namespace gld
