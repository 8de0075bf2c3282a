#include "sampling/cpu/labor_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/simd.h"
#include "sampling/pickers.h"

namespace gld {
namespace {

constexpr int64_t kBlock = 64;          // neighbors whose numbers are made together
constexpr int64_t kStackEntries = 256;  // enough for the fan-outs people use
constexpr int64_t kCountLimit = 96;     // of so many numbers, the k-th is found by comparing each with each
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

// Neighbors that may be picked, in row order, in memory of the caller. From `size` to the next multiple of kLanes,
// `numbers` may be overwritten.
struct Shortlist {
  uint64_t* numbers;
  int64_t* positions;
  int64_t capacity;
  int64_t size = 0;
};

constexpr int64_t kLanes = 4;
// A vector extension of GCC and Clang: the compiler cuts it into what the instruction set has. No more than AVX2 has:
// comparisons of longer ones are made element by element there.
typedef uint64_t Vector __attribute__((vector_size(kLanes * sizeof(uint64_t))));

// How many numbers to let pass on average, so that about one row in a hundred has fewer than `fanout` of them.
inline double generous(int64_t fanout) {
  return static_cast<double>(fanout) + 2 * std::sqrt(static_cast<double>(fanout)) + 2;
}

// The largest number of a row's generous(fanout) smallest, if numbers were spread evenly.
inline uint64_t first_limit(int64_t count, int64_t fanout) {
  const double share = generous(fanout) / static_cast<double>(count);
  return share < 1 ? static_cast<uint64_t>(share * 0x1p64) : kAll;
}

// The `fanout`-th smallest of a list at least that long.
GLD_INLINE uint64_t nth_number(const Shortlist& list, int64_t fanout) {
  if (list.size > kCountLimit) {
    std::vector<uint64_t> sorted(list.numbers, list.numbers + list.size);
    std::nth_element(sorted.begin(), sorted.begin() + (fanout - 1), sorted.end());
    return sorted[fanout - 1];
  }
  // The largest that has fewer than `fanout` below it. Filling up with the greatest number changes no count.
  const int64_t padded = (list.size + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = list.size; i < padded; ++i) list.numbers[i] = kAll;
  Vector nth = {};
  for (int64_t first = 0; first < padded; first += kLanes) {
    Vector numbers, num_below = {};
    std::memcpy(&numbers, list.numbers + first, sizeof(Vector));
    for (int64_t j = 0; j < list.size; ++j) num_below -= (Vector)(list.numbers[j] < numbers);  // all bits are -1
    const Vector found = numbers & (Vector)(num_below < static_cast<uint64_t>(fanout));
    nth = nth < found ? found : nth;
  }
  uint64_t largest = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) largest = std::max<uint64_t>(largest, nth[lane]);
  return largest;
}

// Of edges to the one neighbor whose number is `largest`, the greatest number of the stream that is kept, where there
// is room for `num_kept` of them and there are more.
uint64_t last_tie(const Shortlist& list, NodeStream stream, uint64_t largest, int64_t num_kept) {
  std::vector<uint64_t> ties;
  for (int64_t i = 0; i < list.size; ++i)
    if (list.numbers[i] == largest) ties.push_back(stream.bits(list.positions[i]));
  std::nth_element(ties.begin(), ties.begin() + (num_kept - 1), ties.end());
  return ties[num_kept - 1];
}

// Calls keep(entry, kept before, whether it is kept) for a list in row order, of which the `fanout` smallest are kept.
// Edges to the same neighbor share a number: see pick_labor().
template <typename Keep>
GLD_INLINE void for_smallest(const Shortlist& list, NodeStream stream, int64_t fanout, uint64_t largest, Keep&& keep) {
  int64_t num_kept = fanout, num_largest = 0;
  for (int64_t i = 0; i < list.size; ++i) {
    num_kept -= list.numbers[i] < largest;
    num_largest += list.numbers[i] == largest;
  }
  if (num_largest > num_kept) {
    const uint64_t last = last_tie(list, stream, largest, num_kept);
    for (int64_t i = 0, kept = 0; kept < fanout; ++i)
      kept += keep(i, kept,
                   list.numbers[i] < largest || (list.numbers[i] == largest && stream.bits(list.positions[i]) <= last));
    return;
  }
  for (int64_t i = 0, kept = 0; kept < fanout; ++i) kept += keep(i, kept, list.numbers[i] <= largest);
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "flags are read from the low end of a word");

// The numbers of up to kBlock neighbors; gives a bit for each that is at most `limit`.
template <typename Id>
GLD_INLINE uint64_t low_numbers(uint64_t key, const Id* ids, int64_t count, uint64_t limit, uint64_t* numbers) {
  Id block[kBlock];
  if (count < kBlock) {  // loops of a known length make better use of the lanes
    std::memset(block, 0, sizeof(block));
    std::memcpy(block, ids, count * sizeof(Id));
    ids = block;
  }
  uint8_t is_low[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) numbers[i] = labor_number(key, ids[i]);
  for (int64_t i = 0; i < kBlock; ++i) is_low[i] = numbers[i] <= limit;
  uint64_t low = 0;
  for (int64_t i = 0; i < kBlock; i += 8) {
    uint64_t flags;  // eight of them; the product moves each to a bit of the highest byte
    std::memcpy(&flags, is_low + i, sizeof(flags));
    low |= (flags * 0x0102040810204080ull) >> 56 << i;
  }
  return count < kBlock ? low & ((uint64_t{1} << count) - 1) : low;
}

// Lists the neighbors whose number is at most `limit`; where the list would overflow, no more than can be picked.
template <typename Id>
GLD_INLINE void shortlist(uint64_t key, NodeStream stream, const Id* ids, int64_t count, int64_t fanout, uint64_t limit,
                          Shortlist& list) {
  list.size = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    if (list.size + kBlock > list.capacity) {
      const uint64_t largest = nth_number(list, fanout);
      for_smallest(list, stream, fanout, largest, [&list](int64_t i, int64_t kept, bool is_kept) {
        list.numbers[kept] = list.numbers[i];
        list.positions[kept] = list.positions[i];
        return is_kept;
      });
      list.size = fanout;
      limit = largest;  // another edge to the same neighbor may come before one that is there
    }
    const int64_t size = std::min(kBlock, count - begin);
    uint64_t numbers[kBlock];
    uint64_t low = low_numbers(key, ids + begin, size, limit, numbers);
    for (; low != 0; low &= low - 1) {
      const int64_t i = __builtin_ctzll(low);
      list.numbers[list.size] = numbers[i];
      list.positions[list.size++] = begin + i;
    }
  }
}

template <typename Id>
GLD_INLINE void pick_row(uint64_t key, NodeStream stream, const Id* ids, int64_t count, int64_t fanout,
                         int64_t* positions, Shortlist list) {
  uint64_t limit = first_limit(count, fanout);
  shortlist(key, stream, ids, count, fanout, limit, list);
  while (list.size < fanout) {
    limit = limit > kAll / 4 ? kAll : 4 * limit;
    shortlist(key, stream, ids, count, fanout, limit, list);
  }
  for_smallest(list, stream, fanout, nth_number(list, fanout), [&](int64_t i, int64_t kept, bool is_kept) {
    positions[kept] = list.positions[i];
    return is_kept;
  });
}

template <typename Id>
GLD_INLINE void pick_with_memory(uint64_t key, NodeStream stream, const Id* ids, int64_t count, int64_t fanout,
                                 int64_t* positions) {
  const int64_t capacity = 2 * static_cast<int64_t>(generous(fanout)) + 2 * kBlock;
  if (capacity <= kStackEntries) {
    uint64_t numbers[kStackEntries];
    int64_t listed[kStackEntries];
    return pick_row(key, stream, ids, count, fanout, positions, Shortlist{numbers, listed, kStackEntries});
  }
  std::vector<uint64_t> numbers(capacity);
  std::vector<int64_t> listed(capacity);
  pick_row(key, stream, ids, count, fanout, positions, Shortlist{numbers.data(), listed.data(), capacity});
}

}  // namespace

GLD_SIMD void pick_labor_row(uint64_t key, NodeStream stream, const int32_t* ids, int64_t count, int64_t fanout,
                             int64_t* positions) {
  pick_with_memory(key, stream, ids, count, fanout, positions);
}

GLD_SIMD void pick_labor_row(uint64_t key, NodeStream stream, const int64_t* ids, int64_t count, int64_t fanout,
                             int64_t* positions) {
  pick_with_memory(key, stream, ids, count, fanout, positions);
}

}  // namespace gld
