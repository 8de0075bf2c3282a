// What one process of a sampling worker makes, on its way to the shelf, and its slots on their way back.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel/shm_ring.h"
#include "serving/batch_shelf.h"

namespace gld::serving {

// Shared memory of another process, mapped for reading and writing: who borrows a slot owns it until it goes back.
class Region {
 public:
  // By its path, `/proc/<pid>/fd/<n>`. Throws std::system_error, also where it has fewer bytes, or may come to.
  Region(const std::string& path, uint64_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  // A slot's bytes; throws ChannelError where it lies outside.
  void* at(uint64_t offset, uint64_t nbytes) const;
  uint64_t nbytes() const { return bytes_; }

 private:
  void* memory_;
  const uint64_t bytes_;
};

// The slots of a region that are needed no more, told to its owner by a ring, which that reads when it wants room.
// Small ones go together.
class SlotReturns {
 public:
  SlotReturns(std::shared_ptr<ShmRing> ring, uint64_t region_bytes);
  // From any thread, also where nobody takes them any more. What a fork of the process gives back is not back.
  void give_back(uint64_t offset, uint64_t nbytes) noexcept;

 private:
  const std::shared_ptr<ShmRing> ring_;
  const uint64_t most_bytes_;
  const pid_t owner_;
  std::mutex mutex_;  // of what follows
  std::vector<uint64_t> waiting_;
  uint64_t waiting_bytes_ = 0;
};

// What the owner of a region has been told of in such a ring: offsets of slots.
std::vector<uint64_t> take_returned(ShmRing& ring);

// All methods may be called from any thread.
class WorkerFeed {
 public:
  // Rings of its own: in one the worker announces, or hands over, what it has made, in at most `max_messages` messages
  // that are not handed on; by the other it hears of free slots. What is handed over may have `ring_bytes`, and all of
  // it together `most_together_bytes`. Throws ChannelError.
  WorkerFeed(std::shared_ptr<BatchShelf> shelf, int worker, uint64_t ring_bytes, uint64_t most_together_bytes,
             uint32_t max_messages);
  // In a process forked from its own there is no thread, and nothing is touched.
  ~WorkerFeed();
  WorkerFeed(const WorkerFeed&) = delete;
  WorkerFeed& operator=(const WorkerFeed&) = delete;

  std::string ring_path() const { return ring_->path(); }
  std::string returns_path() const { return returns_ring_->path(); }
  // The worker is up, and this is its region, of a number that no other has: begins to take what it makes, with a
  // thread. Throws std::system_error.
  void open(const std::string& region_path, uint64_t region_bytes, uint64_t region_number);
  // All that was announced until now is on the shelf when this returns. False: nothing more will be.
  bool drain();
  // Nothing more is taken; ends the thread. Idempotent.
  void close();

 private:
  void run();
  void take(std::unique_ptr<ShmRing::Message> message);

  const std::shared_ptr<BatchShelf> shelf_;
  const int worker_;
  const pid_t owner_;
  const std::shared_ptr<ShmRing> ring_, returns_ring_;
  std::thread thread_;
  std::mutex taking_;  // of what follows
  bool is_closed_ = false;
  std::shared_ptr<const Region> region_;
  uint64_t region_number_ = 0;
  std::shared_ptr<SlotReturns> returns_;
};

}  // namespace gld::serving
