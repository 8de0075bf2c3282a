#include "rpc/answers.h"

#include <algorithm>
#include <utility>

#include "channel/futex.h"

namespace gld::rpc {

void Answers::expect(uint64_t request_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  places_.emplace(request_id, std::make_shared<Place>());
}

// With mutex_ held.
std::shared_ptr<Answers::Place> Answers::find(uint64_t request_id) {
  const auto found = places_.find(request_id);
  return found == places_.end() ? nullptr : found->second;
}

std::optional<Frame> Answers::wait(uint64_t request_id, Clock::time_point deadline,
                                   const std::function<void()>& check) {
  for (;;) {
    std::shared_ptr<Place> place;
    uint32_t seen = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      place = find(request_id);
      if (place == nullptr) return std::nullopt;
      if (place->frame) {
        place->is_taken = true;
        return std::exchange(place->frame, std::nullopt);
      }
      if (place->is_released || Clock::now() >= deadline) {
        places_.erase(request_id);
        return std::nullopt;
      }
      seen = place->word.load();
    }
    const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
    // A signal ends it early; a condition variable would sleep on.
    ++place->sleepers;
    const bool is_woken = futex_wait(place->word, seen, left);
    --place->sleepers;
    if (!is_woken) check();
  }
}

bool Answers::is_settled(uint64_t request_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Place> place = find(request_id);
  return place == nullptr || place->frame || place->is_taken || place->is_released;
}

size_t Answers::count() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(places_.begin(), places_.end(), [](const auto& entry) { return !entry.second->is_taken; });
}

// Where nobody sleeps, whoever comes next sees the word changed.
void Answers::wake(Place& place) {
  ++place.word;
  if (place.sleepers > 0) futex_wake(place.word);
}

std::optional<Frame> Answers::take(uint64_t request_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Place> place = find(request_id);
  places_.erase(request_id);
  return place == nullptr ? std::nullopt : std::move(place->frame);
}

bool Answers::offer(Frame& frame) {
  std::shared_ptr<Place> place;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    place = find(frame.header.request_id);
    if (place == nullptr || place->is_released || place->is_taken || place->frame) return false;
    place->frame = std::move(frame);
  }
  wake(*place);
  return true;
}

bool Answers::release(uint64_t request_id) {
  std::shared_ptr<Place> place;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    place = find(request_id);
    if (place == nullptr) return true;
    if (place->frame || place->is_taken) return false;
    place->is_released = true;
  }
  wake(*place);
  return true;
}

}  // namespace gld::rpc
