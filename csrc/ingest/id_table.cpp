#include "ingest/id_table.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "common/error.h"
#include "common/rng.h"

namespace gld {
namespace {

constexpr int64_t kAhead = 32;  // look-ups whose lines of memory are asked for before the first is read
constexpr int64_t kGrain = 16384;

uint64_t hash_of(int64_t id, uint64_t salt) { return mix64(static_cast<uint64_t>(id) + salt); }

uint64_t hash_of(std::string_view text, uint64_t salt) {
  uint64_t hash = mix64(text.size() + salt);
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    hash = mix64(hash ^ word);
  }
  if (i < text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, text.size() - i);
    hash = mix64(hash ^ word);
  }
  return hash;
}

uint64_t drawn_salt() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) + device();
}

struct IntegerSlot {
  int64_t id, position;
};

// A slot of texts: 0 where empty, else some bits of the hash, which nearly always tell another text apart, and where
// the text's record begins, plus 1.
constexpr int kPlaceBits = 40;
constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;
uint64_t tag_of(uint64_t hash) { return hash << kPlaceBits; }  // the lowest bits: the highest say which slot

// What lies there: the position, a byte of the length, 4 more where that is kLong, and the text.
constexpr uint8_t kLong = 255;

size_t record_bytes(size_t length) { return 5 + (length < kLong ? 0 : 4) + length; }

struct TextRecord {
  uint32_t position;
  std::string_view text;
};

TextRecord record_at(const char* place) {
  TextRecord record;
  std::memcpy(&record.position, place, 4);
  uint32_t length = static_cast<uint8_t>(place[4]);
  place += 5;
  if (length == kLong) {
    std::memcpy(&length, place, 4);
    place += 4;
  }
  record.text = {place, length};
  return record;
}

void write_record(char* place, const TextRecord& record) {
  const auto length = static_cast<uint32_t>(record.text.size());
  std::memcpy(place, &record.position, 4);
  place[4] = static_cast<char>(length < kLong ? length : kLong);
  place += 5;
  if (length >= kLong) {
    std::memcpy(place, &length, 4);
    place += 4;
  }
  if (length > 0) std::memcpy(place, record.text.data(), length);
}

const IdColumn& checked(const IdColumn& ids) {
  check_id_column(ids, "ids");
  return ids;
}

}  // namespace

void check_id_column(const IdColumn& column, const char* name) {
  if (!column.is_text()) {
    if (!column.ids.defined() || column.ids.shape.size() != 1 || column.ids.dtype != kInt64)
      throw InvalidArgument(message(name, ": expected int64 [n]"));
    return;
  }
  if (column.offsets.shape.size() != 1 || column.offsets.dtype != kInt64 || column.offsets.shape[0] < 1)
    throw InvalidArgument(message(name, ": expected offsets int64 [n + 1]"));
  if (!column.bytes.defined() || column.bytes.dtype.size() != 1)
    throw InvalidArgument(message(name, ": expected bytes uint8 [n]"));
  const int64_t* offsets = column.offsets.as<const int64_t>();
  const int64_t count = column.offsets.shape[0] - 1;
  bool ascend = offsets[0] >= 0 && offsets[count] <= column.bytes.numel();
  for (int64_t i = 0; i < count; ++i) ascend = ascend && offsets[i] <= offsets[i + 1];
  if (!ascend)
    throw InvalidArgument(message(name, ": expected ascending offsets within ", column.bytes.numel(), " bytes"));
}

IdTable::IdTable(int64_t max_ids, int64_t text_bytes)
    : salt_(drawn_salt()), is_text_(text_bytes >= 0), max_size_(max_ids) {
  if (max_ids < 0 || max_ids >= int64_t{1} << 32)
    throw InvalidArgument(message("ids: expected fewer than 2^32, got ", max_ids));
  num_slots_ = static_cast<uint64_t>(max_ids) * 3 / 2 + 16;
  if (!is_text_) {
    slots_ = empty({static_cast<int64_t>(num_slots_), 2}, kInt64);
    std::fill_n(slots_.as<IntegerSlot>(), num_slots_, IntegerSlot{0, -1});
    return;
  }
  const uint64_t total = static_cast<uint64_t>(text_bytes) + static_cast<uint64_t>(max_ids) * record_bytes(0) +
                         static_cast<uint64_t>(text_bytes) / kLong * 4;
  if (total >= kPlaceMask) throw InvalidArgument(message("ids: expected fewer bytes than ", total));
  slots_ = empty({static_cast<int64_t>(num_slots_)}, kInt64);
  std::memset(slots_.as<char>(), 0, slots_.nbytes());
  texts_ = empty({static_cast<int64_t>(total)}, kUInt8);
}

IdTable::IdTable(const IdColumn& ids) : IdTable(checked(ids).size(), ids.text_bytes()) { add(ids); }

void IdTable::add(const IdColumn& ids) {
  check_kind(ids, "ids");
  if (ids.size() > max_size_ - size_)
    throw InvalidArgument(message("ids: expected at most ", max_size_ - size_, " more, got ", ids.size()));
  if (is_text_)
    add_texts(ids);
  else
    add_integers(ids);
  size_ += ids.size();
}

void IdTable::check_kind(const IdColumn& column, const char* name) const {
  check_id_column(column, name);
  if (column.is_text() != is_text_)
    throw InvalidArgument(message(name, ": expected ", is_text_ ? "texts" : "integers", ", as the list has"));
}

void IdTable::add_integers(const IdColumn& ids) {
  auto* const slots = slots_.as<IntegerSlot>();
  uint64_t at[kAhead];
  for (int64_t first = 0; first < ids.size(); first += kAhead) {
    const int64_t count = std::min(kAhead, ids.size() - first);
    for (int64_t i = 0; i < count; ++i)
      __builtin_prefetch(slots + (at[i] = slot_of(hash_of(ids.integer(first + i), salt_))), 1);
    for (int64_t i = 0; i < count; ++i) {
      while (slots[at[i]].position >= 0) at[i] = next(at[i]);
      slots[at[i]] = {ids.integer(first + i), size_ + first + i};
    }
  }
}

void IdTable::add_texts(const IdColumn& ids) {
  uint64_t total = 0;
  for (int64_t i = 0; i < ids.size(); ++i) total += record_bytes(ids.text(i).size());
  if (total > texts_.nbytes() - texts_end_)
    throw InvalidArgument(
        message("ids: expected texts and their heads in ", texts_.nbytes() - texts_end_, " bytes, got ", total));
  auto* const slots = slots_.as<uint64_t>();
  char* const texts = texts_.as<char>();
  uint64_t at[kAhead], tags[kAhead];
  for (int64_t first = 0; first < ids.size(); first += kAhead) {
    const int64_t count = std::min(kAhead, ids.size() - first);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = hash_of(ids.text(first + i), salt_);
      at[i] = slot_of(hash);
      tags[i] = tag_of(hash);
      __builtin_prefetch(slots + at[i], 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view text = ids.text(first + i);
      while (slots[at[i]] != 0) at[i] = next(at[i]);
      slots[at[i]] = tags[i] | (texts_end_ + 1);
      write_record(texts + texts_end_, {static_cast<uint32_t>(size_ + first + i), text});
      texts_end_ += record_bytes(text.size());
    }
  }
}

void IdTable::find_integers(const IdColumn& asked, int64_t begin, int64_t end, int64_t* out) const {
  const auto* const slots = slots_.as<const IntegerSlot>();
  uint64_t at[kAhead];
  for (int64_t first = begin; first < end; first += kAhead) {
    const int64_t count = std::min(kAhead, end - first);
    for (int64_t i = 0; i < count; ++i)
      __builtin_prefetch(slots + (at[i] = slot_of(hash_of(asked.integer(first + i), salt_))));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = asked.integer(first + i);
      while (slots[at[i]].position >= 0 && slots[at[i]].id != id) at[i] = next(at[i]);
      out[first + i] = slots[at[i]].position;
    }
  }
}

void IdTable::find_texts(const IdColumn& asked, int64_t begin, int64_t end, int64_t* out) const {
  const auto* const slots = slots_.as<const uint64_t>();
  const char* const texts = texts_.as<const char>();
  uint64_t at[kAhead], tags[kAhead];
  // Moves to the next slot that may be the text's: the tag is the same, or it is empty.
  const auto seek = [&](int64_t i) {
    while (slots[at[i]] != 0 && ((slots[at[i]] ^ tags[i]) & ~kPlaceMask) != 0) at[i] = next(at[i]);
  };
  for (int64_t first = begin; first < end; first += kAhead) {
    const int64_t count = std::min(kAhead, end - first);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = hash_of(asked.text(first + i), salt_);
      at[i] = slot_of(hash);
      tags[i] = tag_of(hash);
      __builtin_prefetch(slots + at[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      seek(i);
      if (slots[at[i]] != 0) __builtin_prefetch(texts + (slots[at[i]] & kPlaceMask) - 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view text = asked.text(first + i);
      int64_t found = -1;
      for (; slots[at[i]] != 0 && found < 0; at[i] = next(at[i]), seek(i)) {
        const TextRecord record = record_at(texts + (slots[at[i]] & kPlaceMask) - 1);
        if (record.text == text) found = record.position;
      }
      out[first + i] = found;
    }
  }
}

Tensor IdTable::find(const IdColumn& asked, ThreadPool* pool) const {
  check_kind(asked, "asked");
  Tensor out = empty({asked.size()}, kInt64);
  int64_t* const found = out.as<int64_t>();
  parallel_for(pool, asked.size(), kGrain, [&](int64_t begin, int64_t end) {
    if (is_text_)
      find_texts(asked, begin, end, found);
    else
      find_integers(asked, begin, end, found);
  });
  return out;
}

}  // namespace gld
