// Finds ids in a list of distinct ones, integers or texts.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/tensor.h"
#include "common/thread_pool.h"

namespace gld {

// Ids in a column: int64 [n], or texts as Arrow's large strings have them: offsets int64 [n + 1] into bytes uint8.
struct IdColumn {
  Tensor ids;             // undefined: texts
  Tensor offsets, bytes;  // undefined: integers

  bool is_text() const { return offsets.defined(); }
  int64_t size() const { return is_text() ? offsets.shape[0] - 1 : ids.shape[0]; }
  int64_t integer(int64_t i) const { return ids.as<const int64_t>()[i]; }
  std::string_view text(int64_t i) const {
    const int64_t* at = offsets.as<const int64_t>();
    return {bytes.as<const char>() + at[i], static_cast<size_t>(at[i + 1] - at[i])};
  }
};

// Checks dtypes and shapes, and that texts lie within their bytes. O(n) for texts.
void check_id_column(const IdColumn& column, const char* name);

// An open-addressing table of positions over a borrowed column: 4 bytes a slot, and 1.5 to 3 slots an id.
class IdTable {
 public:
  // `ids`: distinct, fewer than 2^32 - 1. Their memory is kept.
  explicit IdTable(IdColumn ids);

  // For each of `asked`, of the same kind, its position in the list, or -1: int64 [n]. Any number of threads may ask.
  Tensor find(const IdColumn& asked, ThreadPool* pool) const;

  int64_t size() const { return ids_.size(); }

 private:
  template <typename Get>
  void build(const Get& get);
  template <typename Get, typename GetAsked>
  void find_range(const Get& get, const GetAsked& asked, int64_t begin, int64_t end, int64_t* out) const;

  IdColumn ids_;
  uint64_t mask_ = 0;
  std::vector<uint32_t> slots_;
};

}  // namespace gld
