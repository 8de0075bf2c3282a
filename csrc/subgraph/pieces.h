// Results of unknown length from the chunks of a parallel loop, put back in the order of the loop.
#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace gld {

template <typename Piece>
class PieceList {
 public:
  // From any thread; `begin` is where the chunk begins.
  void add(int64_t begin, Piece piece) {
    std::lock_guard<std::mutex> lock(mutex_);
    pieces_.emplace_back(begin, std::move(piece));
  }

  // After the loop: the pieces by where they began.
  std::vector<std::pair<int64_t, Piece>> take() {
    std::sort(pieces_.begin(), pieces_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return std::move(pieces_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int64_t, Piece>> pieces_;
};

}  // namespace gld
