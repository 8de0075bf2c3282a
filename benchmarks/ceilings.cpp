// What this machine's memory can do with one thread: the ceilings beside the figures of samplers and gathers.
// Compiled at run time by ceilings.py, which calls these functions over arrays of its own and takes the time.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kReadsAhead = 32;

// Loads at random places. No address depends on a load and places ahead are prefetched, so that many are in flight.
template <typename Word>
uint64_t read_places(const char* data, const int64_t* places, int64_t count, int64_t granule) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kReadsAhead < count) __builtin_prefetch(data + places[i + kReadsAhead] * granule);
    sum += *reinterpret_cast<const Word*>(data + places[i] * granule);
  }
  return sum;
}

// A width that is known when compiling lets memcpy become a few moves.
template <int64_t kWidth>
void copy_fixed(const char* data, const int64_t* rows, int64_t count, int64_t ahead, char* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count)
      for (int64_t offset = 0; offset < kWidth; offset += kLine)
        __builtin_prefetch(data + rows[i + ahead] * kWidth + offset);
    std::memcpy(out + i * kWidth, data + rows[i] * kWidth, kWidth);
  }
}

}  // namespace

extern "C" {

void copy_bytes(char* out, const char* data, int64_t bytes) { std::memcpy(out, data, bytes); }

uint64_t read_4_bytes(const char* data, const int64_t* places, int64_t count) {
  return read_places<uint32_t>(data, places, count, 4);
}

uint64_t read_64_bytes(const char* data, const int64_t* places, int64_t count) {
  return read_places<uint64_t>(data, places, count, kLine);
}

// Copies `count` rows of `width` bytes to out, with prefetches `ahead` rows ahead. Returns false for other widths.
bool copy_rows(const char* data, const int64_t* rows, int64_t count, int64_t width, int64_t ahead, char* out) {
  switch (width) {
    case 64:
      copy_fixed<64>(data, rows, count, ahead, out);
      return true;
    case 128:
      copy_fixed<128>(data, rows, count, ahead, out);
      return true;
    case 256:
      copy_fixed<256>(data, rows, count, ahead, out);
      return true;
    case 400:
      copy_fixed<400>(data, rows, count, ahead, out);
      return true;
    case 512:
      copy_fixed<512>(data, rows, count, ahead, out);
      return true;
    case 1024:
      copy_fixed<1024>(data, rows, count, ahead, out);
      return true;
    case 2048:
      copy_fixed<2048>(data, rows, count, ahead, out);
      return true;
    case 4096:
      copy_fixed<4096>(data, rows, count, ahead, out);
      return true;
    default:
      return false;
  }
}
}
