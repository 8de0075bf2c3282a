#include "feature/disk_rows.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/error.h"

namespace gld {
namespace {

constexpr int64_t kFewestSlots = 64;
constexpr int64_t kMostSlots = INT32_MAX;
constexpr int64_t kRangeBytes = 128 << 10;  // longer reads are no faster
constexpr int64_t kGapBytes = 2048;         // to read so much in vain takes less than another read
constexpr int64_t kJobBytes = 256 << 10;    // of a job, which are in memory beside the cache
constexpr size_t kFewJobs = 4;              // for a disk to have enough reads under way
constexpr size_t kReadsOfJob = 8;           // at once; with more, those of others would wait in long queues
static_assert(kReadsOfJob <= DirectFile::kMostTogether);
constexpr int64_t kMostAhead = 8192;  // rows on their way, enough to keep a disk busy
constexpr uint8_t kMostChances = 3;

}  // namespace

// Rows whose blocks lie close: one read.
struct DiskRows::Range {
  std::vector<Wanted> wanted;  // ascending by row
};

std::shared_ptr<DiskRows> DiskRows::open(RowFile file, DiskRowsSettings settings) {
  return std::shared_ptr<DiskRows>(new DiskRows(std::move(file), std::move(settings)));
}

int64_t DiskRows::bytes_for(int64_t slots, int64_t row_bytes) {
  return slots * (row_bytes + static_cast<int64_t>(sizeof(Slot) + sizeof(int32_t))) +
         static_cast<int64_t>(RowTable<int32_t>::bytes_for(static_cast<size_t>(slots)));
}

int64_t DiskRows::least_bytes(int64_t num_rows, int64_t row_bytes) {
  return bytes_for(std::min(kFewestSlots, num_rows), row_bytes);
}

DiskRows::DiskRows(RowFile file, DiskRowsSettings settings)
    : file_(std::move(file)), settings_(std::move(settings)), source_(file_.path, settings_.read), owner_(getpid()) {
  if (file_.row_bytes < 1 || file_.num_rows < 1 || file_.offset < 0)
    throw InvalidArgument(message(file_.path, ": expected rows of at least a byte"));
  const int64_t end = file_.offset + file_.num_rows * file_.row_bytes;
  if (source_.size() < end)
    throw StorageFailure(message(file_.path, ": expected at least ", end, " bytes, got ", source_.size()));
  if (file_.inode != 0 && source_.inode() != file_.inode)
    throw StorageFailure(message(file_.path, ": expected the file that is mapped, there is another of its name now"));
  // The table grows in powers of two, so the number of slots is searched for.
  int64_t fits = 0, beyond = std::min({settings_.memory_bytes / file_.row_bytes, file_.num_rows, kMostSlots}) + 1;
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (bytes_for(middle, file_.row_bytes) <= settings_.memory_bytes ? fits : beyond) = middle;
  }
  const int64_t least = least_bytes(file_.num_rows, file_.row_bytes);
  if (settings_.memory_bytes < least)
    throw InvalidArgument(message("feature_memory: expected at least ", least, " bytes for rows of ", file_.row_bytes,
                                  " bytes of ", file_.path, ", got ", settings_.memory_bytes));
  num_slots_ = fits;
  max_ahead_ = std::clamp<int64_t>(num_slots_ / 4, 1, kMostAhead);
  // Several threads may pin at once, so each gets a part.
  max_pinned_ = std::max<int64_t>(1, (num_slots_ - max_ahead_) / 4);
  slots_.resize(static_cast<size_t>(num_slots_));
  for (int64_t slot = num_slots_ - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
  slot_of_ = RowTable<int32_t>(static_cast<size_t>(num_slots_));
  memory_bytes_ = static_cast<size_t>(num_slots_ * file_.row_bytes);
  void* const mapped = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory(message("feature_memory: no ", memory_bytes_, " bytes are to be had"));
  memory_ = static_cast<char*>(mapped);
  (void)madvise(mapped, memory_bytes_, MADV_DONTFORK);  // a fork has no use for it, and would take as much again
}

DiskRows::~DiskRows() {
  if (getpid() == owner_) munmap(memory_, memory_bytes_);
}

void DiskRows::check_row(int64_t row) const {
  if (row < 0 || row >= file_.num_rows) throw UnknownId(message("row ", row, " is outside [0, ", file_.num_rows, ")"));
}

void DiskRows::check_process() const {
  if (getpid() != owner_) throw StorageFailure(message(file_.path, ": its cached rows are used in a fork"));
}

DiskRowsCounts DiskRows::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

int64_t DiskRows::num_uses() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(uses_.size());
}

// --- slots -----------------------------------------------------------------------------------------------------------

void DiskRows::link(int32_t slot) {
  Slot& linked = slots_[slot];
  List& list = list_of(linked.next_use);
  linked.before = list.last;
  linked.after = -1;
  (list.last < 0 ? list.first : slots_[list.last].after) = slot;
  list.last = slot;
}

void DiskRows::unlink(int32_t slot) {
  const Slot& linked = slots_[slot];
  List& list = list_of(linked.next_use);
  (linked.before < 0 ? list.first : slots_[linked.before].after) = linked.after;
  (linked.after < 0 ? list.last : slots_[linked.after].before) = linked.before;
}

// Nobody has it pinned any more.
void DiskRows::release(int32_t slot) {
  if (slots_[slot].state != State::kFailed) return link(slot);
  slots_[slot] = Slot();
  free_.push_back(slot);
}

void DiskRows::retarget(int64_t row, int64_t next_use) {
  const int32_t* const found = slot_of_.find(row);
  if (found == nullptr || slots_[*found].next_use == next_use) return;
  const bool is_linked = slots_[*found].num_pins == 0;
  if (is_linked) unlink(*found);
  slots_[*found].next_use = next_use;
  if (is_linked) link(*found);
}

int32_t DiskRows::evict(int32_t slot) {
  unlink(slot);
  slot_of_.erase(slots_[slot].row);
  slots_[slot] = Slot();
  return slot;
}

// A slot for a row: free, or of a row whose next use comes after `later_than`; -1 where there is none.
int32_t DiskRows::take_slot(int64_t later_than) {
  if (!free_.empty()) {
    const int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  while (unused_.first >= 0) {
    const int32_t oldest = unused_.first;
    if (slots_[oldest].chances == 0) return evict(oldest);
    --slots_[oldest].chances;
    unlink(oldest);
    link(oldest);
  }
  for (int64_t use = first_use_ + static_cast<int64_t>(uses_.size()) - 1; use > later_than && use >= first_use_; --use)
    if (const int32_t slot = list_of(use).first; slot >= 0) return evict(slot);
  return -1;
}

// The slot, pinned once by who reads the row into it.
int32_t DiskRows::begin_load(int64_t row, int32_t slot) {
  const Places* const places = places_.find(row);
  Slot& loading = slots_[slot];
  loading.row = row;
  loading.next_use = places == nullptr ? kNever : places->first.use;
  loading.num_pins = 1;
  loading.state = State::kLoading;
  slot_of_.insert(row, slot);
  return slot;
}

// --- uses ------------------------------------------------------------------------------------------------------------

int64_t DiskRows::announce(const Tensor& rows) {
  check_process();
  check_index_vector(rows, "rows");
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t number = first_use_ + static_cast<int64_t>(uses_.size());
  Use use;
  dispatch_index(rows.dtype, "rows", [&](auto tag) {
    const auto* const given = rows.as<decltype(tag)>();
    for (int64_t i = 0; i < rows.numel(); ++i) check_row(given[i]);
    use.rows.assign(given, given + rows.numel());
  });
  // Later occurrences of a row in the same use are dropped.
  size_t num_distinct = 0;
  for (const int64_t row : use.rows) {
    const Place place{number, static_cast<int32_t>(num_distinct)};
    const auto [places, is_new] = places_.insert(row, Places{place, place});
    if (!is_new) {
      if (places->last.use == number) continue;
      uses_[static_cast<size_t>(places->last.use - first_use_)].next[places->last.index] = place;
      places->last = place;
    }
    use.rows[num_distinct++] = row;
  }
  use.rows.resize(num_distinct);
  use.next.resize(num_distinct);
  uses_.push_back(std::move(use));
  for (const int64_t row : uses_.back().rows)
    if (places_.find(row)->first.use == number) retarget(row, number);
  lock.unlock();
  read_ahead();
  return number;
}

// The next place of the same row in a use that is not over.
void DiskRows::advance(Place* place) {
  do {
    *place = uses_[static_cast<size_t>(place->use - first_use_)].next[place->index];
  } while (place->use != kNever && uses_[static_cast<size_t>(place->use - first_use_)].is_finished);
}

void DiskRows::finish(int64_t number) {
  check_process();
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t at = number - first_use_;
  if (at < 0 || at >= static_cast<int64_t>(uses_.size()) || uses_[static_cast<size_t>(at)].is_finished) return;
  Use& use = uses_[static_cast<size_t>(at)];
  use.is_finished = true;
  for (const int64_t row : use.rows) {
    Places* const places = places_.find(row);
    if (places->first.use != number) continue;
    advance(&places->first);
    retarget(row, places->first.use);
    if (places->first.use == kNever) places_.erase(row);
  }
  while (!uses_.empty() && uses_.front().is_finished) {
    uses_.pop_front();
    ++first_use_;
  }
  lock.unlock();
  read_ahead();
}

// --- reading ahead ---------------------------------------------------------------------------------------------------

void DiskRows::find_missing(const Use& use) {
  missing_.clear();
  num_begun_ = 0;
  if (use.is_finished) return;
  for (const int64_t row : use.rows)
    if (slot_of_.find(row) == nullptr) missing_.push_back(row);
  std::sort(missing_.begin(), missing_.end());
}

// Rows to read now, with a slot each.
std::vector<DiskRows::Wanted> DiskRows::choose_ahead() {
  std::vector<Wanted> chosen;
  // Few at a time would be read one by one.
  if (num_ahead_ > max_ahead_ / 2) return chosen;
  while (num_ahead_ < max_ahead_) {
    ahead_use_ = std::max(ahead_use_, first_use_);
    if (num_begun_ == missing_.size()) {
      if (ahead_use_ >= first_use_ + static_cast<int64_t>(uses_.size())) break;
      find_missing(uses_[static_cast<size_t>(ahead_use_ - first_use_)]);
      ++ahead_use_;
      continue;
    }
    const int64_t row = missing_[num_begun_], use = ahead_use_ - 1;
    if (slot_of_.find(row) != nullptr || places_.find(row) == nullptr) {
      ++num_begun_;
      continue;
    }
    const int32_t slot = reserved_ + num_ahead_ < num_slots_ ? take_slot(use) : -1;
    if (slot < 0) break;  // all that is here is needed before
    ++num_begun_;
    chosen.push_back({row, begin_load(row, slot)});
    ++num_ahead_;
    ++counts_.rows_ahead;
  }
  return chosen;
}

void DiskRows::read_ahead() {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Wanted> chosen = choose_ahead();
  lock.unlock();
  if (!chosen.empty()) submit(std::move(chosen), true);
}

// --- reads -----------------------------------------------------------------------------------------------------------

FileRange DiskRows::place_of(const Wanted* wanted, size_t count) const {
  return {file_.offset + wanted[0].row * file_.row_bytes, file_.offset + (wanted[count - 1].row + 1) * file_.row_bytes};
}

int64_t DiskRows::bytes_read_for(const Range& range) const {
  const FileRange place = place_of(range.wanted.data(), range.wanted.size());
  const int64_t block = source_.block();
  return (place.end + block - 1) / block * block - place.begin / block * block;
}

// The reads that rows take, ascending.
std::vector<DiskRows::Range> DiskRows::ranges_of(std::vector<Wanted> wanted) const {
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& one, const Wanted& other) { return one.row < other.row; });
  const int64_t block = source_.block();
  std::vector<Range> ranges;
  int64_t first_block = 0, last_block = -1;
  for (const Wanted& each : wanted) {
    const FileRange place = place_of(&each, 1);
    const int64_t low = place.begin / block, high = (place.end - 1) / block;
    if (ranges.empty() || (low - last_block - 1) * block > kGapBytes ||
        (high + 1 - first_block) * block > kRangeBytes) {
      ranges.emplace_back();
      first_block = low;
    }
    ranges.back().wanted.push_back(each);
    last_block = high;
  }
  return ranges;
}

void DiskRows::submit(std::vector<Wanted> wanted, bool is_ahead) {
  std::vector<Range> ranges = ranges_of(std::move(wanted));
  const size_t num_jobs =
      source_.is_direct() ? kFewJobs : 2 * kReadThreads;  // a thread has several reads under way, or one
  const size_t most = std::clamp<size_t>(ranges.size() / num_jobs, 1, kReadsOfJob);
  for (size_t begin = 0, end; begin < ranges.size(); begin = end) {
    int64_t bytes = 0;
    for (end = begin; end < ranges.size() && end - begin < most && (end == begin || bytes < kJobBytes); ++end)
      bytes += bytes_read_for(ranges[end]);
    std::vector<Range> of_job(std::make_move_iterator(ranges.begin() + static_cast<std::ptrdiff_t>(begin)),
                              std::make_move_iterator(ranges.begin() + static_cast<std::ptrdiff_t>(end)));
    // The rows outlive their jobs.
    read_soon([self = shared_from_this(), of_job = std::move(of_job),
               is_ahead](ReadBuffer& buffer) { self->load(of_job, is_ahead, buffer); },
              !is_ahead);
  }
}

// `bytes`: of the first row, and what lies behind it.
void DiskRows::keep_rows(const Wanted* wanted, size_t count, const char* bytes) {
  for (size_t i = 0; i < count; ++i)
    std::memcpy(memory_ + wanted[i].slot * file_.row_bytes, bytes + (wanted[i].row - wanted[0].row) * file_.row_bytes,
                static_cast<size_t>(file_.row_bytes));
}

void DiskRows::read_rows(const Wanted* wanted, size_t count, ReadBuffer& buffer) {
  const FileRange place = place_of(wanted, count);
  keep_rows(wanted, count, source_.read(place.begin, place.end, buffer, [&] {
    return message(file_.path, ": row ", wanted[0].row, ": ");
  }));
}

// What went wrong, and with which rows.
std::exception_ptr DiskRows::load_range(const Range& range, ReadBuffer& buffer, std::vector<Wanted>* failed) {
  const auto attempt = [&](const Wanted* wanted, size_t count) -> std::exception_ptr {
    try {
      read_rows(wanted, count, buffer);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  };
  std::exception_ptr failure = attempt(range.wanted.data(), range.wanted.size());
  if (failure == nullptr) return nullptr;
  std::exception_ptr of_row;
  for (const Wanted& each : range.wanted) {  // one by one: who asks for another row of them gets it
    std::exception_ptr found = attempt(&each, 1);
    if (found == nullptr) continue;
    failed->push_back(each);
    of_row = found;
  }
  return of_row;
}

void DiskRows::load(const std::vector<Range>& ranges, bool is_ahead, ReadBuffer& buffer) {
  std::vector<FileRange> places;
  for (const Range& range : ranges) places.push_back(place_of(range.wanted.data(), range.wanted.size()));
  source_.read_together(places, buffer);
  for (size_t i = 0; i < ranges.size(); ++i)
    if (places[i].bytes != nullptr) keep_rows(ranges[i].wanted.data(), ranges[i].wanted.size(), places[i].bytes);
  std::vector<Wanted> failed;
  std::exception_ptr failure;
  for (size_t i = 0; i < ranges.size(); ++i)
    if (places[i].bytes == nullptr)
      if (std::exception_ptr found = load_range(ranges[i], buffer, &failed)) failure = found;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure != nullptr) failure_ = failure;
    for (const Wanted& each : failed) {
      slots_[each.slot].state = State::kFailed;
      slot_of_.erase(each.row);
    }
    for (const Range& range : ranges) {
      counts_.bytes += bytes_read_for(range);
      if (is_ahead) num_ahead_ -= static_cast<int64_t>(range.wanted.size());
      for (const Wanted& each : range.wanted) {
        Slot& slot = slots_[each.slot];
        if (slot.state == State::kLoading) slot.state = State::kReady;
        if (--slot.num_pins == 0) release(each.slot);
      }
    }
    if (num_waiting_ > 0) changed_.notify_all();
  }
  if (is_ahead) read_ahead();
}

// --- who asks --------------------------------------------------------------------------------------------------------

void DiskRows::wait_for(std::unique_lock<std::mutex>& lock, const int64_t* slots, int64_t count,
                        std::chrono::steady_clock::time_point deadline) {
  for (int64_t i = 0; i < count; ++i) {
    const Slot& slot = slots_[slots[i]];
    const auto has_come = [&slot] { return slot.state != State::kLoading; };
    ++num_waiting_;
    const bool in_time = changed_.wait_until(lock, deadline, has_come);
    --num_waiting_;
    if (!in_time)
      throw StorageFailure(
          message(file_.path, ": row ", slot.row, ": was not read within ", settings_.timeout_s, " seconds"));
    if (slot.state == State::kFailed) std::rethrow_exception(failure_);
  }
}

void DiskRows::pin(const int64_t* rows, int64_t count, int64_t* slots) {
  check_process();
  if (count > max_pinned_) throw InvalidArgument(message("rows: expected at most ", max_pinned_, ", got ", count));
  for (int64_t i = 0; i < count; ++i) check_row(rows[i]);
  const auto limit = std::chrono::duration<double>(settings_.timeout_s);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  // Who pins and who reads ahead never take more than there is, so that a slot is always to be had.
  ++num_waiting_;
  const bool in_time = changed_.wait_until(
      lock, deadline, [&] { return reserved_ + count + max_ahead_ <= num_slots_ || reserved_ == 0; });
  --num_waiting_;
  if (!in_time)
    throw StorageFailure(message(file_.path, ": no room for rows within ", settings_.timeout_s, " seconds"));
  reserved_ += count;
  std::vector<Wanted> wanted;
  int64_t num_pinned = 0;
  for (; num_pinned < count; ++num_pinned) {
    const int64_t row = rows[num_pinned];
    const int32_t* const found = slot_of_.find(row);
    const int32_t slot = found != nullptr ? *found : take_slot(-1);
    if (slot < 0) break;  // reads that were given up have not ended yet
    if (found == nullptr) {
      wanted.push_back({row, begin_load(row, slot)});
    } else {
      if (slots_[slot].num_pins == 0) unlink(slot);
      if (slots_[slot].chances < kMostChances) ++slots_[slot].chances;
    }
    ++slots_[slot].num_pins;
    slots[num_pinned] = slot;
  }
  reserved_ -= count - num_pinned;
  counts_.misses += static_cast<int64_t>(wanted.size());
  counts_.hits += num_pinned - static_cast<int64_t>(wanted.size());
  lock.unlock();
  try {
    if (!wanted.empty()) submit(std::move(wanted), false);
    if (num_pinned < count)
      throw StorageFailure(message(file_.path, ": row ", rows[num_pinned], ": earlier reads have not ended"));
    lock.lock();
    wait_for(lock, slots, count, deadline);
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();
    unpin(slots, num_pinned);
    throw;
  }
}

void DiskRows::unpin(const int64_t* slots, int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_ -= count;
  for (int64_t i = 0; i < count; ++i)
    if (--slots_[slots[i]].num_pins == 0) release(static_cast<int32_t>(slots[i]));
  if (num_waiting_ > 0) changed_.notify_all();
}

}  // namespace gld
