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

// Both tables hand out a `View` for one run of inserts: plain values that the compiler keeps in registers, which it
// could not do for members, since the entries it writes might be those. A view is good for the inserts it was made for,
// and one view at a time.
class DenseRelabelTable {
 public:
  explicit DenseRelabelTable(int64_t num_nodes);

  // Forgets the last batch; the next one will hold fewer than `max_local` nodes. Batches of other sizes may come in any
  // order: an entry is split for the largest one since the table was last cleared.
  void begin(int64_t max_local);
  // Whether begin(max_local) will clear the table, which takes a while.
  bool begin_clears(int64_t max_local) const;
  // After inserts of local ids of more bits than begin() was told: they may have spoiled entries of any batch, so the
  // next begin() clears the table.
  void spoil() { is_spoiled_ = true; }
  // How often begin() cleared.
  int64_t num_clears() const { return num_clears_; }
  const uint32_t* entries() const { return entries_.get(); }

  class View {
   public:
    View(uint32_t* entries, uint32_t stamp, uint32_t local_mask)
        : entries_(entries), stamp_(stamp), local_mask_(local_mask) {}
    void prefetch(int64_t id) const { __builtin_prefetch(entries_ + id, 1); }

    // The local id of `id`: the known one, or `next` if it is new. Branch-free; *is_new is 0 or 1.
    uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) {
      const uint32_t known = entries_[id] ^ stamp_;  // the local id, if the entry is of this batch
      *is_new = known > local_mask_;
      // Whether a node is new nobody can predict, and compilers make a branch of `?:`.
      const uint32_t local = known ^ ((known ^ next) & (0u - *is_new));
      entries_[id] = stamp_ | local;
      return local;
    }

   private:
    uint32_t* entries_;
    uint32_t stamp_, local_mask_;
  };

  // For at most `count` inserts.
  View view(int64_t count) {
    (void)count;
    return {entries_.get(), stamp_ << local_bits_, local_mask_};
  }

  // One insert alone.
  uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) { return view(1).insert(id, next, is_new); }

 private:
  size_t num_bytes() const;
  void clear();

  std::shared_ptr<uint32_t> entries_;
  int64_t num_nodes_, num_clears_ = 0;
  uint32_t local_bits_ = 0, local_mask_ = 0, stamp_ = 0;
  uint32_t wanted_bits_ = 0;  // most that a batch asked for since the entries were last split
  bool is_spoiled_ = false;
};

class HashRelabelTable {
  struct Slot {
    int64_t id;
    uint32_t local, stamp;
  };

 public:
  void begin(int64_t max_local);
  void spoil() {}  // local ids have 32 bits of their own here

  class View {
   public:
    explicit View(HashRelabelTable& table)
        : slots_(table.slots_.data()), mask_(table.mask_), stamp_(table.stamp_), used_(&table.used_) {}
    void prefetch(int64_t id) const { __builtin_prefetch(slots_ + home(id, mask_), 1); }

    // As for the dense table; the likely outcome of a probe is that the first slot is it.
    uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) {
      size_t at = home(id, mask_);
      while (slots_[at].stamp == stamp_ && slots_[at].id != id) at = (at + 1) & mask_;
      Slot& slot = slots_[at];
      *is_new = slot.stamp != stamp_;
      const uint32_t local = *is_new ? next : slot.local;
      slot = {id, local, stamp_};
      *used_ += *is_new;
      return local;
    }

   private:
    Slot* slots_;
    size_t mask_;
    uint32_t stamp_;
    size_t* used_;
  };

  // For at most `count` inserts: grows the table first, so that it stays at most half full.
  View view(int64_t count) {
    while (2 * (used_ + static_cast<size_t>(count)) > slots_.size()) grow();
    return View(*this);
  }

  // One insert alone.
  uint32_t insert(int64_t id, uint32_t next, uint32_t* is_new) { return view(1).insert(id, next, is_new); }

 private:
  static size_t home(int64_t id, size_t mask) {
    return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> 20) & mask;
  }
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0, used_ = 0;
  uint32_t stamp_ = 0;
};

// Graphs up to this many nodes get the dense form (1 GiB of address space, touched only where batches reach).
constexpr int64_t kDenseRelabelLimit = int64_t{1} << 28;

}  // namespace gld
