// From global node ids to positions in a batch.
//
// Dense form: one 32-bit entry per node of the graph, an epoch stamp in the high bits and the local id in the low ones,
// so that nothing is cleared between batches and the table stays small. Graphs too large for that use open addressing
// over the batch's nodes. Local ids are given in the order of first appearance.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace gld {

class DenseRelabelTable {
 public:
  explicit DenseRelabelTable(int64_t num_nodes);

  // Forgets the last batch; the next one will hold fewer than `max_local` nodes.
  void begin(int64_t max_local);
  void prefetch(int64_t id) const { __builtin_prefetch(entries_.get() + id, 1); }

  // The local id of `id`: the known one, or `next` if it is new. Branch-free; *is_new is 0 or 1.
  uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) {
    const uint32_t entry = entries_.get()[id];
    *is_new = (entry >> local_bits_) != stamp_;
    const uint32_t local = *is_new ? next : entry & local_mask_;
    entries_.get()[id] = (stamp_ << local_bits_) | local;
    return local;
  }

 private:
  std::shared_ptr<uint32_t> entries_;
  int64_t num_nodes_;
  uint32_t local_bits_ = 31, local_mask_ = 0x7FFFFFFF, stamp_ = 0;
};

class HashRelabelTable {
 public:
  void begin(int64_t max_local);
  void prefetch(int64_t id) const { __builtin_prefetch(slots_.data() + home(id), 1); }

  uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    size_t at = home(id);
    while (slots_[at].stamp == stamp_ && slots_[at].id != id) at = (at + 1) & mask_;
    Slot& slot = slots_[at];
    *is_new = slot.stamp != stamp_;
    if (*is_new) {
      slot = {id, next, stamp_};
      ++used_;
    }
    return slot.local;
  }

 private:
  struct Slot {
    int64_t id;
    uint32_t local, stamp;
  };
  size_t home(int64_t id) const { return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> 20) & mask_; }
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0, used_ = 0;
  uint32_t stamp_ = 0;
};

// Graphs up to this many nodes get the dense form (1 GiB of address space, touched only where batches reach).
constexpr int64_t kDenseRelabelLimit = int64_t{1} << 28;

}  // namespace gld
