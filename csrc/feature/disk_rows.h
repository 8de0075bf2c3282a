// Rows of a file that is larger than memory: direct reads behind a cache of rows, which knows what will be asked for.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/row_table.h"
#include "common/tensor.h"
#include "feature/direct_file.h"

namespace gld {

// Where rows lie, one behind the other.
struct RowFile {
  std::string path;
  int64_t offset = 0;  // bytes in front of the first row
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  uint64_t inode = 0;  // of the file that is meant, where another may have its name by now; 0: any
};

struct DiskRowsSettings {
  int64_t memory_bytes = 0;     // for cached rows and the tables that find them
  double timeout_s = 120;       // a row that is not here by then is given up
  ReadFunction read = nullptr;  // null: pread
};

// What was asked for and read since the rows were opened.
struct DiskRowsCounts {
  int64_t hits = 0;        // rows that were asked for and lay in the cache, or were on their way there
  int64_t misses = 0;      // rows that were asked for and had to be read
  int64_t rows_ahead = 0;  // rows that were read because of an announcement
  int64_t bytes = 0;       // that were read, whole blocks
};

// All methods may be called from any thread. In a fork of its process it must not be used, and its end touches nothing
// there.
//
// A *use* is a set of rows that will be asked for together, such as those of a batch; uses are in the order in which
// they are announced. Rows of announced uses are read ahead in that order, each once, and the row whose next use is the
// farthest makes room (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, within what is
// announced). A row without a known use makes room before all others: the one that came first, unless it was asked for
// since, in which case its turn comes again (the second chances of S3-FIFO's main queue; Yang et al., SOSP 2023).
// Announcements never change what a row holds.
class DiskRows : public std::enable_shared_from_this<DiskRows> {
 public:
  // Throws InvalidArgument where the memory is too small for a few rows, and StorageFailure where the file cannot be
  // opened, is too short or is another.
  static std::shared_ptr<DiskRows> open(RowFile file, DiskRowsSettings settings);
  // The least memory with which so many rows of a file may be opened.
  static int64_t least_bytes(int64_t num_rows, int64_t row_bytes);
  ~DiskRows();
  DiskRows(const DiskRows&) = delete;
  DiskRows& operator=(const DiskRows&) = delete;

  // The rows of a use, int32 or int64 [n], any order; returns its number. Throws UnknownId for a row outside the file.
  int64_t announce(const Tensor& rows);
  // A use is over, or will not come. Every use must end; others may have ended before. Unknown numbers do nothing.
  void finish(int64_t use);

  // slots[i] = where row rows[i] lies: at memory() + slot * row_bytes, until it is unpinned. Reads those that are
  // missing, and waits for them. `count` is at most max_pinned(). A thread that pins rows of several DiskRows at once
  // pins them in the same order as every other. Throws UnknownId for a row outside the file, and StorageFailure, with
  // the file and a row, where one cannot be read or the time is over; nothing is pinned then.
  void pin(const int64_t* rows, int64_t count, int64_t* slots);
  void unpin(const int64_t* slots, int64_t count);

  int64_t max_pinned() const { return max_pinned_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t num_rows() const { return file_.num_rows; }
  int64_t num_uses() const;  // that are not over, and those between them
  char* memory() const { return memory_; }
  DiskRowsCounts counts() const;

 private:
  static constexpr int64_t kNever = INT64_MAX;
  enum class State : uint8_t { kFree, kLoading, kReady, kFailed };
  struct Slot {
    int64_t row = -1;
    int64_t next_use = kNever;
    int32_t before = -1, after = -1;  // in the list of its next use, while nobody has it pinned
    int32_t num_pins = 0;
    State state = State::kFree;
    uint8_t chances = 0;
  };
  struct List {
    int32_t first = -1, last = -1;
  };
  struct Place {  // of a row in a use
    int64_t use = kNever;
    int32_t index = -1;
  };
  struct Use {
    std::vector<int64_t> rows;  // distinct
    std::vector<Place> next;    // the same row in a later use
    List slots;                 // unpinned slots of which this is the next use
    bool is_finished = false;
  };
  struct Places {  // of a row in uses that are not over
    Place first, last;
  };
  struct Wanted {
    int64_t row;
    int32_t slot;
  };
  struct Range;

  DiskRows(RowFile file, DiskRowsSettings settings);
  static int64_t bytes_for(int64_t slots, int64_t row_bytes);
  void check_row(int64_t row) const;
  void check_process() const;

  // With mutex_ held.
  List& list_of(int64_t use) { return use == kNever ? unused_ : uses_[static_cast<size_t>(use - first_use_)].slots; }
  void link(int32_t slot);
  void unlink(int32_t slot);
  void release(int32_t slot);
  void retarget(int64_t row, int64_t next_use);
  int32_t take_slot(int64_t later_than);
  int32_t evict(int32_t slot);
  int32_t begin_load(int64_t row, int32_t slot);
  void find_missing(const Use& use);
  std::vector<Wanted> choose_ahead();
  void advance(Place* place);

  // Without it.
  void read_ahead();
  FileRange place_of(const Wanted* wanted, size_t count) const;
  int64_t bytes_read_for(const Range& range) const;
  std::vector<Range> ranges_of(std::vector<Wanted> wanted) const;
  void submit(std::vector<Wanted> wanted, bool is_ahead);
  void keep_rows(const Wanted* wanted, size_t count, const char* bytes);
  void load(const std::vector<Range>& ranges, bool is_ahead, ReadBuffer& buffer);
  std::exception_ptr load_range(const Range& range, ReadBuffer& buffer, std::vector<Wanted>* failed);
  void read_rows(const Wanted* wanted, size_t count, ReadBuffer& buffer);
  void wait_for(std::unique_lock<std::mutex>& lock, const int64_t* slots, int64_t count,
                std::chrono::steady_clock::time_point deadline);

  const RowFile file_;
  const DiskRowsSettings settings_;
  const DirectFile source_;
  const pid_t owner_;
  int64_t num_slots_ = 0, max_pinned_ = 0, max_ahead_ = 0;
  size_t memory_bytes_ = 0;
  char* memory_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // rows came, or pins went
  int num_waiting_ = 0;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;
  RowTable<int32_t> slot_of_;
  List unused_;                 // unpinned slots without a known use, oldest first
  int64_t reserved_ = 0;        // pins that are given or promised
  std::exception_ptr failure_;  // of the last read that failed

  std::deque<Use> uses_;
  int64_t first_use_ = 0;
  RowTable<Places> places_;
  int64_t ahead_use_ = 0;         // rows of the uses before it are here or on their way
  std::vector<int64_t> missing_;  // of the use before ahead_use_, those that are to be read, ascending
  size_t num_begun_ = 0;          // of these
  int64_t num_ahead_ = 0;         // rows that are being read ahead
  DiskRowsCounts counts_;
};

}  // namespace gld
