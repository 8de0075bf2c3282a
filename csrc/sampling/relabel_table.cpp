#include "sampling/relabel_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "common/error.h"

namespace gld {

DenseRelabelTable::DenseRelabelTable(int64_t num_nodes) : num_nodes_(num_nodes) {
  const size_t bytes = std::max<int64_t>(num_nodes, 1) * sizeof(uint32_t);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; refusal costs only speed
  entries_ = std::shared_ptr<uint32_t>(static_cast<uint32_t*>(memory), [bytes](uint32_t* p) { munmap(p, bytes); });
}

void DenseRelabelTable::begin(int64_t max_local) {
  if (max_local >= (int64_t{1} << 31))
    throw InvalidArgument(message("a batch may hold fewer than 2^31 nodes, this one may reach ", max_local));
  uint32_t bits = 1;
  while ((int64_t{1} << bits) <= max_local) ++bits;
  if (bits == local_bits_ && stamp_ + 1 < (uint64_t{1} << (32 - bits))) {
    ++stamp_;
    return;
  }
  // The stamps are used up, or the split of the entry moves: clear once. Dropped pages come back as zeros.
  const size_t bytes = std::max<int64_t>(num_nodes_, 1) * sizeof(uint32_t);
  if (stamp_ != 0) std::fill_n(entries_.get(), bytes / sizeof(uint32_t), 0u);
  local_bits_ = bits;
  local_mask_ = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  stamp_ = 1;
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
