// What one hop reads of a graph, in one piece or in several: the candidates of a frontier, and the arrays they lie in.
//
// A hop graph has: read_candidates(ids, begin, end, candidates), for nodes [begin, end) of the frontier, and afterwards
// piece(i), the piece that holds the i-th of them; positions of its candidates are within that piece's arrays.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "routing/partition_book.h"
#include "sampling/cpu/pick_block.h"

namespace gld {

template <typename PickerType, typename IndexType>
struct HopPiece {
  using Picker = PickerType;
  using Index = IndexType;

  Picker picker;
  const int64_t* indptr;
  const Index* indices;
  EdgeIdReader edge_id_at;

  HopPiece(const Csr& csr, const Picker& picker)
      : picker(picker), indptr(csr.indptr.as<int64_t>()), indices(csr.indices.as<Index>()), edge_id_at(csr) {}
};

// A graph whose rows are global ids.
template <typename Piece>
class WholeHopGraph {
 public:
  using Picker = typename Piece::Picker;

  explicit WholeHopGraph(Piece piece) : piece_(std::move(piece)) {}
  const Piece& piece(int64_t) const { return piece_; }
  void read_candidates(const int64_t* ids, int64_t begin, int64_t end, Candidates* candidates) const {
    gld::read_candidates(
        piece_.picker, piece_.indptr, [ids](int64_t i) { return ids[i]; }, begin, end, candidates + begin);
  }

 private:
  Piece piece_;
};

// A graph in the pieces of a partition book. `owners` has room for one entry per node of the frontier.
template <typename Piece>
class HopGraphInPieces {
 public:
  using Picker = typename Piece::Picker;

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

 private:
  static constexpr int64_t kLocated = 1024;  // nodes that are located at a time

  std::vector<Piece> pieces_;
  const PartitionBook& book_;
  int32_t* owners_;
};

}  // namespace gld
