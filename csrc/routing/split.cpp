#include "routing/split.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "routing/neighbor_parts.h"

namespace gld {
namespace {

constexpr int64_t kGrain = 4096;

// A loop cut into equal chunks whose number depends on the pool; used where a chunk leaves something behind for a
// second pass (a histogram, a sum).
struct Chunks {
  int64_t count, length, num_chunks;
  ThreadPool* pool;

  Chunks(int64_t count, ThreadPool* pool) : count(count), pool(pool) {
    const int64_t most = pool == nullptr ? 1 : 4 * pool->size();
    num_chunks = std::max<int64_t>(1, std::min(most, count / kGrain));
    length = (count + num_chunks - 1) / num_chunks;
  }

  // body(chunk, begin, end)
  template <typename Body>
  void run(Body&& body) const {
    const auto loop = [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk)
        body(chunk, std::min(chunk * length, count), std::min((chunk + 1) * length, count));
    };
    if (num_chunks == 1 || pool == nullptr) return loop(0, num_chunks);
    pool->parallel_for(num_chunks, 1, loop);
  }
};

Split split_single(const Tensor& ids, const PartitionBook& book, ThreadPool* pool) {
  const int64_t n = ids.numel();
  Split split{empty({n}, kInt64), empty({n}, kInt64), empty({n}, kInt64), empty({2}, kInt64), empty({n}, kInt32)};
  int64_t* out_ids = split.ids.as<int64_t>();
  int64_t* rows = split.rows.as<int64_t>();
  int64_t* positions = split.positions.as<int64_t>();
  dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* source = ids.as<decltype(type)>();
    parallel_for(pool, n, kGrain, [&](int64_t begin, int64_t end) {
      book.locate(source + begin, end - begin, nullptr, rows + begin, begin);
      for (int64_t i = begin; i < end; ++i) {
        out_ids[i] = source[i];
        positions[i] = i;
      }
    });
  });
  std::fill_n(split.owners.as<int32_t>(), n, 0);
  split.offsets.as<int64_t>()[0] = 0;
  split.offsets.as<int64_t>()[1] = n;
  return split;
}

// Turns the chunks' histograms [num_chunks, num_partitions] into the places where each chunk writes its ids of each
// owner, and fills the buckets' offsets.
void place_buckets(std::vector<int64_t>& histograms, int64_t num_chunks, int num_partitions, int64_t* offsets) {
  int64_t place = 0;
  for (int p = 0; p < num_partitions; ++p) {
    offsets[p] = place;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      int64_t& slot = histograms[static_cast<size_t>(chunk * num_partitions + p)];
      const int64_t size = slot;
      slot = place;
      place += size;
    }
  }
  offsets[num_partitions] = place;
}

// A counting sort in two passes: locate and count, then move. `Id` is the type of the split's ids.
template <typename Id, typename T>
Split split_many(const T* ids, int64_t n, const PartitionBook& book, ThreadPool* pool, bool with_positions) {
  const int num_partitions = book.num_partitions();
  Split split{empty({n}, sizeof(Id) == sizeof(int32_t) ? kInt32 : kInt64), empty({n}, kInt64),
              with_positions ? empty({n}, kInt64) : Tensor{}, empty({num_partitions + 1}, kInt64), empty({n}, kInt32)};
  const Tensor row_buffer = empty({n}, kInt64);
  int32_t* owners = split.owners.as<int32_t>();
  int64_t* located = row_buffer.as<int64_t>();
  const Chunks chunks(n, pool);
  std::vector<int64_t> histograms(static_cast<size_t>(chunks.num_chunks * num_partitions), 0);
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    book.locate(ids + begin, end - begin, owners + begin, located + begin, begin);
    int64_t* histogram = histograms.data() + chunk * num_partitions;
    for (int64_t i = begin; i < end; ++i) ++histogram[owners[i]];
  });
  place_buckets(histograms, chunks.num_chunks, num_partitions, split.offsets.as<int64_t>());
  Id* out_ids = split.ids.as<Id>();
  int64_t* rows = split.rows.as<int64_t>();
  int64_t* positions = split.positions.as<int64_t>();
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* places = histograms.data() + chunk * num_partitions;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = places[owners[i]]++;
      out_ids[place] = static_cast<Id>(ids[i]);
      rows[place] = located[i];
      if (with_positions) positions[place] = i;
    }
  });
  return split;
}

// Those ids in [begin, end) that would be asked for and of which there are copies; how many.
//
// find(ids, count, slots) says where copies lie, -1 for those of which there is none; put(i, slot) has that of ids[i].
template <typename T, typename Find, typename Put>
int64_t take_found(const std::vector<uint8_t>& asked, const T* ids, int64_t begin, int64_t end, const int32_t* owners,
                   Find&& find, Put&& put) {
  constexpr int64_t kBlock = 256;
  int64_t chosen[kBlock], wanted[kBlock], found[kBlock], taken = 0;
  for (int64_t first = begin; first < end; first += kBlock) {
    int64_t count = 0;
    for (int64_t i = first; i < std::min(first + kBlock, end); ++i) {
      chosen[count] = i;
      wanted[count] = ids[i];
      count += asked[owners[i]];
    }
    find(wanted, count, found);
    for (int64_t k = 0; k < count; ++k) {
      if (found[k] < 0) continue;
      put(chosen[k], found[k]);
      ++taken;
    }
  }
  return taken;
}

struct Taken {
  int64_t copied = 0, recent = 0;
};

int num_blocks_of(const KeptCopies& copies) { return copies.recent == nullptr ? 0 : copies.recent->num_blocks(); }

// Their owners and rows become those of the copies; counts those that are asked for, by owner.
template <typename T>
Taken take_copies(const KeptCopies& copies, int num_partitions, const std::vector<uint8_t>& asked, const T* ids,
                  int64_t begin, int64_t end, int32_t* owners, int64_t* rows, int64_t* counts) {
  Taken taken;
  if (const SortedIds* const list = copies.ids; list != nullptr) {
    const int64_t* const copy_rows = copies.rows.defined() ? copies.rows.as<int64_t>() : nullptr;
    taken.copied = take_found(
        asked, ids, begin, end, owners, [&](auto... wanted) { list->find(wanted...); },
        [&](int64_t i, int64_t place) {
          owners[i] = num_partitions;
          rows[i] = copy_rows == nullptr ? place : copy_rows[place];
        });
  }
  if (const RecentIds* const recent = copies.recent; recent != nullptr) {
    taken.recent = take_found(
        asked, ids, begin, end, owners, [&](auto... wanted) { recent->find(wanted...); },
        [&](int64_t i, int64_t slot) {
          owners[i] = num_partitions + 1 + recent->block_of(slot);
          rows[i] = recent->row_in(slot);
        });
  }
  for (int64_t i = begin; i < end; ++i) counts[owners[i]] += asked[owners[i]];
  return taken;
}

// Owners and rows by a table that has all that is at hand, too; the book has those of what is asked for alone, which
// `counts` has, by owner, in the end.
template <typename T>
Taken look_up(const RecentIds& table, const PartitionBook& book, const T* ids, int64_t begin, int64_t end,
              int32_t* owners, int64_t* rows, int64_t* counts) {
  constexpr int64_t kBlock = 256;
  int64_t wanted[kBlock], missing[kBlock], missing_rows[kBlock];
  int32_t missing_owners[kBlock];
  const int32_t copies = book.num_partitions();
  const auto num_ids = static_cast<uint64_t>(table.num_ids());
  Taken taken;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    std::copy_n(ids + first, count, wanted);
    bool is_known = true;
    for (int64_t i = 0; i < count; ++i) is_known &= static_cast<uint64_t>(wanted[i]) < num_ids;
    int32_t* const of = owners + first;
    if (!is_known) book.locate(ids + first, count, of, rows + first, first);  // which says which is not
    table.locate(wanted, count, of, rows + first);
    for (int64_t i = 0; i < count; ++i) taken.copied += of[i] == copies;
    for (int64_t i = 0; i < count; ++i) taken.recent += of[i] > copies;
    int64_t num_missing = 0;
    for (int64_t i = 0; i < count; ++i) {
      missing[num_missing] = i;
      num_missing += of[i] < 0;
    }
    if (num_missing == 0) continue;
    for (int64_t k = 0; k < num_missing; ++k) wanted[k] = wanted[missing[k]];  // whose place is not below k
    book.locate(wanted, num_missing, missing_owners, missing_rows, 0);
    for (int64_t k = 0; k < num_missing; ++k) {
      of[missing[k]] = missing_owners[k];
      ++counts[missing_owners[k]];
    }
  }
  return taken;
}

// As split_many(), of the ids whose owners are asked; the others stay where they are.
//
// locate(asked, begin, end, owners, rows, counts) fills in `owners`, where these are not known yet, and the rows of
// those at hand and of copies; counts those that are asked for, by owner.
template <typename T, typename Locate>
LocatedRows locate_many(const T* ids, int64_t n, Tensor known_owners, const std::vector<bool>& is_asked,
                        ThreadPool* pool, int num_blocks, Locate&& locate) {
  const int num_partitions = static_cast<int>(is_asked.size());
  const int num_places = num_partitions + 1 + num_blocks;  // behind the partitions are the copies
  LocatedRows out;
  out.owners = std::move(known_owners);
  out.rows = empty({n}, kInt64);
  out.offsets = empty({num_partitions + 1}, kInt64);
  int32_t* owners = out.owners.as<int32_t>();
  int64_t* rows = out.rows.as<int64_t>();
  int64_t* offsets = out.offsets.as<int64_t>();
  std::vector<uint8_t> asked(is_asked.begin(), is_asked.end());  // bits would cost more to read
  asked.resize(static_cast<size_t>(num_places), 0);
  const Chunks chunks(n, pool);
  std::vector<int64_t> histograms(static_cast<size_t>(chunks.num_chunks * num_places), 0);
  std::vector<Taken> taken(static_cast<size_t>(chunks.num_chunks));
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    taken[static_cast<size_t>(chunk)] = locate(asked, begin, end, owners, rows, histograms.data() + chunk * num_places);
  });
  std::vector<int64_t> bounds(static_cast<size_t>(num_places + 1));
  place_buckets(histograms, chunks.num_chunks, num_places, bounds.data());
  std::copy_n(bounds.begin(), num_partitions + 1, offsets);
  for (const Taken& of_chunk : taken) {
    out.num_copied += of_chunk.copied;
    out.num_recent += of_chunk.recent;
  }
  out.ids = empty({offsets[num_partitions]}, kInt64);
  out.positions = empty({offsets[num_partitions]}, kInt64);
  if (out.ids.numel() == 0) return out;
  int64_t* out_ids = out.ids.as<int64_t>();
  int64_t* positions = out.positions.as<int64_t>();
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* places = histograms.data() + chunk * num_places;
    constexpr int64_t kBlock = 256;
    int64_t chosen[kBlock];  // those of a block that are asked, found without a branch that nobody can predict
    for (int64_t first = begin; first < end; first += kBlock) {
      int64_t count = 0;
      for (int64_t i = first; i < std::min(first + kBlock, end); ++i) {
        chosen[count] = i;
        count += asked[owners[i]];
      }
      for (int64_t k = 0; k < count; ++k) {
        const int64_t i = chosen[k], place = places[owners[i]]++;
        out_ids[place] = ids[i];
        positions[place] = i;
        rows[i] = place - offsets[owners[i]];
      }
    }
  });
  return out;
}

// The rows of those ids in [begin, end) that are of a partition at hand.
template <typename T>
void find_owned(const SortedIds& at_hand, int32_t partition, const T* ids, const int32_t* owners, int64_t begin,
                int64_t end, int64_t* rows) {
  constexpr int64_t kBlock = 256;
  int64_t chosen[kBlock], wanted[kBlock], found[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {
    int64_t count = 0;
    for (int64_t i = first; i < std::min(first + kBlock, end); ++i) {
      chosen[count] = i;
      wanted[count] = ids[i];
      count += owners[i] == partition;
    }
    at_hand.find(wanted, count, found);
    for (int64_t k = 0; k < count; ++k) {
      if (found[k] < 0)
        throw UnknownId(message("ids[", chosen[k], "]: edge ", wanted[k], " is not one of partition ", partition));
      rows[chosen[k]] = found[k];
    }
  }
}

// Replaces values by the sum of those before them; returns the total.
int64_t exclusive_scan(int64_t* values, int64_t count, ThreadPool* pool) {
  const Chunks chunks(count, pool);
  std::vector<int64_t> sums(static_cast<size_t>(chunks.num_chunks), 0);
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += values[i];
    sums[static_cast<size_t>(chunk)] = sum;
  });
  int64_t total = 0;
  for (int64_t& sum : sums) {
    const int64_t own = sum;
    sum = total;
    total += own;
  }
  chunks.run([&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t sum = sums[static_cast<size_t>(chunk)];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t own = values[i];
      values[i] = sum;
      sum += own;
    }
  });
  return total;
}

// Integers of another width, or themselves; undefined of an undefined one.
Tensor as_dtype(const Tensor& values, DType dtype) {
  if (!values.defined() || values.dtype == dtype) return values;
  const Tensor out = empty({values.numel()}, dtype);
  const auto copy = [&](auto from) {
    dispatch_index(dtype, "values",
                   [&](auto to) { std::copy_n(values.as<decltype(from)>(), values.numel(), out.as<decltype(to)>()); });
  };
  // Counts come as narrowed_counts() makes them.
  if (values.dtype == kUInt8)
    copy(uint8_t{});
  else
    dispatch_index(values.dtype, "values", copy);
  return out;
}

// The counts of partition p as int64: none is negative or too large, and they add up.
Tensor checked_counts(const NeighborPart& part, size_t p, int64_t max_count) {
  Tensor counts = as_dtype(part.counts, kInt64);
  const int64_t num_neighbors = part.neighbors.numel();
  const int64_t most = max_count < 0 ? num_neighbors : std::min(max_count, num_neighbors);
  int64_t sum = 0;
  for (int64_t i = 0; i < counts.numel(); ++i) {
    const int64_t count = counts.as<int64_t>()[i];
    // Each is bounded by itself, too: a sum that wraps around may be right by chance.
    if (static_cast<uint64_t>(count) > static_cast<uint64_t>(most)) {
      const auto refuse = [&](const auto&... why) {
        throw InvalidArgument(message("parts[", p, "].counts[", i, "]=", count, ": ", why...));
      };
      if (count < 0 || count > num_neighbors)
        refuse("expected 0 <= count <= ", num_neighbors, ", the neighbors that partition ", p, " sent");
      refuse("partition ", p, " was asked for at most ", max_count, " neighbors of a node");
    }
    sum += count;
  }
  if (sum != num_neighbors)
    throw InvalidArgument(message("parts[", p, "].neighbors: partition ", p, " sent ", num_neighbors,
                                  " neighbors, its counts add up to ", sum));
  return counts;
}

// Where each entry of the answers goes in the order of the original ids.
struct Stitch {
  Tensor counts;      // int64 [n], neighbors of the i-th original id
  Tensor source;      // int64 [n], where the neighbors of the i-th id in bucket order start in its part's answer
  Tensor target;      // int64 [n], where those of the i-th original id start in the result
  int64_t total = 0;  // of all
};

Stitch plan_stitch(const Tensor& positions, const int64_t* bounds, const std::vector<NeighborPart>& parts,
                   ThreadPool* pool, int64_t max_count) {
  const int64_t n = positions.numel();
  const int64_t* position = positions.as<int64_t>();
  Stitch stitch{empty({n}, kInt64), empty({n}, kInt64), empty({n}, kInt64)};
  int64_t* const counts = stitch.counts.as<int64_t>();
  int64_t* const source = stitch.source.as<int64_t>();
  int64_t* const target = stitch.target.as<int64_t>();
  std::fill(counts, counts + n, int64_t{-1});
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].counts.defined()) continue;
    const Tensor given = checked_counts(parts[p], p, max_count);
    const int64_t first = bounds[p], size = bounds[p + 1] - first;
    std::copy_n(given.as<int64_t>(), size, source + first);
    exclusive_scan(source + first, size, pool);
    parallel_for(pool, size, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t where = position[first + i];
        if (where < 0 || where >= n)
          throw InvalidArgument(message("positions[", first + i, "]=", where, ": expected 0 <= position < ", n));
        counts[where] = given.as<int64_t>()[i];
      }
    });
  }
  // As many positions as places: a place that nobody filled means that another was filled twice.
  const int64_t* missed = std::find(counts, counts + n, int64_t{-1});
  if (missed != counts + n)
    throw InvalidArgument(message("positions: expected each of 0 to ", n - 1, " once, got none for ", missed - counts));
  std::copy(counts, counts + n, target);
  stitch.total = exclusive_scan(target, n, pool);
  return stitch;
}

// A field of the answers (`neighbors` or `edge_ids`) in the order of the original ids.
Tensor stitched(const Stitch& stitch, const Tensor& positions, const int64_t* bounds,
                const std::vector<NeighborPart>& parts, Tensor NeighborPart::* field, ThreadPool* pool) {
  Tensor out = empty({stitch.total}, common_dtype(parts, field));
  const int64_t* position = positions.as<int64_t>();
  const int64_t* from = stitch.source.as<int64_t>();
  const int64_t* to = stitch.target.as<int64_t>();
  const int64_t* count = stitch.counts.as<int64_t>();
  dispatch_index(out.dtype, "neighbors", [&](auto type) {
    using Value = decltype(type);
    for (size_t p = 0; p < parts.size(); ++p) {
      const Tensor values = as_dtype(parts[p].*field, out.dtype);
      if (!values.defined() || values.numel() == 0) continue;
      const int64_t first = bounds[p];
      parallel_for(pool, bounds[p + 1] - first, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = first + begin; i < first + end; ++i) {
          const int64_t where = position[i];
          std::copy_n(values.as<Value>() + from[i], count[where], out.as<Value>() + to[where]);
        }
      });
    }
  });
  return out;
}

// Rows [first, first + count) go to positions[0 .. count).
template <typename Word>
void scatter_words(const Tensor& out, const int64_t* positions, const Tensor& rows, int64_t first, int64_t count) {
  Word* target = out.as<Word>();
  const Word* source = rows.as<Word>() + first;
  for (int64_t i = 0; i < count; ++i) target[positions[i]] = source[i];
}

void scatter_block(const Tensor& out, const int64_t* positions, const Tensor& rows, size_t row_bytes, int64_t first,
                   int64_t count) {
  if (row_bytes == 0) return;  // such tensors may have no memory at all
  const size_t word = rows.dtype.size();
  if (row_bytes == 4 && word == 4) return scatter_words<uint32_t>(out, positions, rows, first, count);
  if (row_bytes == 8 && word == 8) return scatter_words<uint64_t>(out, positions, rows, first, count);
  char* target = out.as<char>();
  const char* source = rows.as<char>() + static_cast<size_t>(first) * row_bytes;
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(target + static_cast<size_t>(positions[i]) * row_bytes, source + static_cast<size_t>(i) * row_bytes,
                row_bytes);
}

void check_scatter(const Tensor& out, const Tensor& positions, const Tensor& rows) {
  check_index_vector(positions, "positions");
  if (out.dtype != rows.dtype)
    throw InvalidArgument(
        message("rows: expected the dtype of out, ", to_string(out.dtype), ", got ", to_string(rows.dtype)));
  if (out.shape.empty() || out.shape.size() != rows.shape.size() ||
      !std::equal(out.shape.begin() + 1, out.shape.end(), rows.shape.begin() + 1))
    throw InvalidArgument("rows: expected the shape of out but for the first extent");
  if (rows.shape[0] != positions.numel())
    throw InvalidArgument(
        message("rows: expected ", positions.numel(), " rows, one for each position, got ", rows.shape[0]));
}

}  // namespace

Split split_by_owner(const Tensor& ids, const PartitionBook& book, ThreadPool* pool, bool is_lean) {
  check_index_vector(ids, "ids");
  if (book.num_partitions() == 1) return split_single(ids, book, pool);
  return dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* from = ids.as<decltype(type)>();
    if (is_lean && book.num_ids() <= std::numeric_limits<int32_t>::max())
      return split_many<int32_t>(from, ids.numel(), book, pool, false);
    return split_many<int64_t>(from, ids.numel(), book, pool, !is_lean);
  });
}

LocatedRows locate_rows(const Tensor& ids, const PartitionBook& book, const std::vector<bool>& is_asked,
                        ThreadPool* pool, const KeptCopies& copies) {
  check_index_vector(ids, "ids");
  if (static_cast<int>(is_asked.size()) != book.num_partitions())
    throw InvalidArgument(message("is_asked: expected one entry for each of ", book.num_partitions(),
                                  " partitions, got ", is_asked.size()));
  if (copies.recent != nullptr && copies.recent->num_ids() != book.num_ids())
    throw InvalidArgument(
        message("recent: expected rows of ", book.num_ids(), " ids, as the book has, got ", copies.recent->num_ids()));
  return dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* wanted = ids.as<decltype(type)>();
    const int64_t n = ids.numel();
    const int num_partitions = book.num_partitions();
    return locate_many(wanted, n, empty({n}, kInt32), is_asked, pool, num_blocks_of(copies),
                       [&](const std::vector<uint8_t>& asked, int64_t begin, int64_t end, int32_t* owners,
                           int64_t* rows, int64_t* counts) {
                         if (copies.recent != nullptr && copies.recent->has_fixed())
                           return look_up(*copies.recent, book, wanted, begin, end, owners, rows, counts);
                         book.locate(wanted + begin, end - begin, owners + begin, rows + begin, begin);
                         return take_copies(copies, num_partitions, asked, wanted, begin, end, owners, rows, counts);
                       });
  });
}

LocatedRows locate_owned(const Tensor& owners, const Tensor& ids, const std::vector<const SortedIds*>& at_hand,
                         ThreadPool* pool, const KeptCopies& copies) {
  check_index_vector(ids, "ids");
  check_vector(owners, kInt32, ids.numel(), "owners");
  const auto num_partitions = static_cast<int32_t>(at_hand.size());
  std::vector<bool> is_asked;
  for (const SortedIds* list : at_hand) is_asked.push_back(list == nullptr);
  return dispatch_index(ids.dtype, "ids", [&](auto type) {
    const auto* wanted = ids.as<decltype(type)>();
    const auto locate = [&](const std::vector<uint8_t>& asked, int64_t begin, int64_t end, int32_t* known,
                            int64_t* rows, int64_t* counts) {
      for (int64_t i = begin; i < end; ++i)
        if (known[i] < 0 || known[i] >= num_partitions)
          throw UnknownId(message("owners[", i, "]: expected 0 <= owner < ", num_partitions, ", got ", known[i]));
      for (int32_t p = 0; p < num_partitions; ++p)
        if (at_hand[static_cast<size_t>(p)] != nullptr)
          find_owned(*at_hand[static_cast<size_t>(p)], p, wanted, known, begin, end, rows);
      return take_copies(copies, num_partitions, asked, wanted, begin, end, known, rows, counts);
    };
    if (copies.recent != nullptr) throw InvalidArgument("recent: expected none of rows that lie with their edges");
    Tensor places = copies.ids == nullptr ? owners : empty({ids.numel()}, kInt32);
    if (copies.ids != nullptr) std::copy_n(owners.as<int32_t>(), ids.numel(), places.as<int32_t>());
    return locate_many(wanted, ids.numel(), std::move(places), is_asked, pool, num_blocks_of(copies), locate);
  });
}

Neighbors stitch_neighbors(const Tensor& positions, const Tensor& offsets, const std::vector<NeighborPart>& parts,
                           ThreadPool* pool, int64_t max_count) {
  if (max_count < -1) throw InvalidArgument(message("max_count: expected at least 0, or -1, got ", max_count));
  check_index_vector(positions, "positions");
  if (positions.dtype != kInt64) throw InvalidArgument("positions: expected dtype int64, as split_by_owner gives them");
  check_parts(positions.numel(), offsets, parts);
  const int64_t* bounds = offsets.as<int64_t>();
  const bool with_edge_ids = have_edge_ids(parts);
  const Stitch stitch = plan_stitch(positions, bounds, parts, pool, max_count);
  Neighbors result;
  result.counts = stitch.counts;
  result.neighbors = stitched(stitch, positions, bounds, parts, &NeighborPart::neighbors, pool);
  if (with_edge_ids) result.edge_ids = stitched(stitch, positions, bounds, parts, &NeighborPart::edge_ids, pool);
  return result;
}

AnswerReader::AnswerReader(const Split& split, const std::vector<NeighborPart>& parts, int64_t max_count)
    : split_(split) {
  check_parts(split.owners.numel(), split.offsets, parts);
  has_edge_ids_ = have_edge_ids(parts);
  neighbor_dtype_ = common_dtype(parts, &NeighborPart::neighbors);
  for (const NeighborPart& part : parts) {
    Tensor counts = part.counts.defined() ? checked_counts(part, parts_.size(), max_count) : Tensor();
    places_.push_back({counts.as<int64_t>(), 0});
    parts_.push_back({std::move(counts), as_dtype(part.neighbors, neighbor_dtype_), as_dtype(part.edge_ids, kInt64)});
    if (part.neighbors.defined()) total_ += part.neighbors.numel();
  }
}

void scatter_rows(const Tensor& out, const Tensor& positions, const Tensor& rows, ThreadPool* pool) {
  check_scatter(out, positions, rows);
  size_t row_bytes = out.dtype.size();
  for (size_t axis = 1; axis < out.shape.size(); ++axis) row_bytes *= static_cast<size_t>(out.shape[axis]);
  const int64_t limit = out.shape[0];
  dispatch_index(positions.dtype, "positions", [&](auto type) {
    using Position = decltype(type);
    const Position* position = positions.as<Position>();
    parallel_for(pool, positions.numel(), kGrain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 512;
      int64_t wide[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t size = std::min(kBlock, end - first);
        for (int64_t i = 0; i < size; ++i) {
          wide[i] = position[first + i];
          if (wide[i] < 0 || wide[i] >= limit)
            throw UnknownId(message("positions[", first + i, "]=", wide[i], ": expected 0 <= position < ", limit));
        }
        scatter_block(out, wide, rows, row_bytes, first, size);
      }
    });
  });
}

}  // namespace gld
