#include "sampling/relabel_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/error.h"

namespace gld {
namespace {

constexpr size_t kLeastDropped = size_t{1} << 20;  // filling fewer bytes costs less than page faults

// Bits that hold local ids from 0 to `max_local`; 32 where 31 do not.
uint32_t bits_for(int64_t max_local) {
  uint32_t bits = 1;
  while (bits < 32 && (int64_t{1} << bits) <= max_local) ++bits;
  return bits;
}

// Stamps that the other bits of an entry can tell apart, with the 0 of a cleared one.
uint32_t num_stamps(uint32_t local_bits) { return uint32_t{1} << (32 - local_bits); }

}  // namespace

DenseRelabelTable::DenseRelabelTable(int64_t num_nodes) : num_nodes_(num_nodes) {
  const size_t bytes = num_bytes();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; refusal costs only speed
  entries_ = std::shared_ptr<uint32_t>(static_cast<uint32_t*>(memory), [bytes](uint32_t* p) { munmap(p, bytes); });
}

size_t DenseRelabelTable::num_bytes() const { return std::max<int64_t>(num_nodes_, 1) * sizeof(uint32_t); }

bool DenseRelabelTable::begin_clears(int64_t max_local) const {
  const bool is_fresh = stamp_ == 0;
  return !is_fresh && (is_spoiled_ || bits_for(max_local) > local_bits_ || stamp_ + 1 >= num_stamps(local_bits_));
}

void DenseRelabelTable::begin(int64_t max_local) {
  if (max_local >= (int64_t{1} << 31))
    throw InvalidArgument(message("a batch may hold fewer than 2^31 nodes, this one may reach ", max_local));
  wanted_bits_ = std::max(wanted_bits_, bits_for(max_local));
  const bool clears = begin_clears(max_local);
  if (clears) clear();
  if (clears || stamp_ == 0) {
    local_bits_ = std::exchange(wanted_bits_, bits_for(max_local));
    local_mask_ = static_cast<uint32_t>((uint64_t{1} << local_bits_) - 1);
    stamp_ = 0;
  }
  ++stamp_;
}

void DenseRelabelTable::clear() {
  ++num_clears_;
  is_spoiled_ = false;
  // Dropped pages come back as zeros, and only where batches reach. Pages that are locked cannot be dropped.
  const bool is_dropped = num_bytes() >= kLeastDropped && madvise(entries_.get(), num_bytes(), MADV_DONTNEED) == 0;
  if (!is_dropped) std::fill_n(entries_.get(), num_bytes() / sizeof(uint32_t), 0u);
}

void HashRelabelTable::begin(int64_t max_local) {
  // Grows with the batch; `max_local` may be far above what a batch reaches.
  const size_t wanted = static_cast<size_t>(std::min<int64_t>(max_local, 1 << 16)) * 2;
  size_t capacity = 1024;
  while (capacity < wanted) capacity *= 2;
  used_ = 0;
  ++stamp_;
  if (capacity > slots_.size() || stamp_ == 0) {
    slots_.assign(std::max(capacity, slots_.size()), Slot{0, 0, 0});
    mask_ = slots_.size() - 1;
    stamp_ = 1;
  }
}

void HashRelabelTable::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{0, 0, 0});
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.stamp != stamp_) continue;
    size_t at = home(slot.id, mask_);
    while (slots_[at].stamp == stamp_) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

}  // namespace gld
