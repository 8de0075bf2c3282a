#include "subgraph/induced.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "graph/row_offsets.h"
#include "sampling/batch_builder.h"
#include "sampling/cpu/pick_block.h"
#include "subgraph/member_table.h"
#include "subgraph/pieces.h"
#include "subgraph/row_search.h"

namespace gld {
namespace {

constexpr int64_t kRowGrain = 64;
constexpr int64_t kScanBlock = 1024;  // room for matches is made once for this many neighbors
// A row is searched for each member, instead of each neighbor looked up, where it is this many times longer than the
// list of members; the members must be sorted for that, which pays if the long rows together are longer still.
constexpr int64_t kLongRow = 16;
constexpr int64_t kSortingPays = 64;

void check_count(int64_t count, int64_t max_edges) {
  if (count > max_edges)
    throw InvalidArgument(message("ids: expected at most ", max_edges, " edges in one answer, found ", count));
}

// What one chunk of rows found. Positions are those in csr.indices.
struct Matches {
  GrowingArray cols, positions;
};

template <typename Index>
struct Member {
  Index id;
  int64_t position;
};

// The distinct members by ascending id.
template <typename Index, typename Id>
std::vector<Member<Index>> sorted_members(const Id* members, int64_t count) {
  std::vector<Member<Index>> sorted;
  sorted.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    if (fits<Index>(members[i])) sorted.push_back({static_cast<Index>(members[i]), i});
  std::sort(sorted.begin(), sorted.end(),
            [](auto a, auto b) { return a.id < b.id || (a.id == b.id && a.position < b.position); });
  auto same_id = [](auto a, auto b) { return a.id == b.id; };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same_id), sorted.end());
  return sorted;
}

template <typename Index>
class InducedKernel {
 public:
  template <typename Id>
  InducedKernel(const Csr& csr, const std::vector<RowSpan>& spans, const Id* members, int64_t num_members,
                bool with_positions, int64_t max_edges)
      : indices_(csr.indices.as<Index>()),
        spans_(spans),
        num_members_(num_members),
        with_positions_(with_positions),
        max_edges_(max_edges),
        table_(members, num_members) {
    if (!csr.sorted_by_neighbor() || num_members == 0) return;
    int64_t in_long_rows = 0;
    for (RowSpan span : spans) in_long_rows += is_long(span) ? span.end - span.begin : 0;
    if (in_long_rows > kSortingPays * num_members) sorted_ = sorted_members<Index>(members, num_members);
  }

  Matches run(int64_t begin, int64_t end, int64_t* counts) const {
    Matches out;
    out.cols.clear();
    if (with_positions_) out.positions.clear();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t before = out.cols.size();
      if (i + 1 < end) __builtin_prefetch(indices_ + spans_[i + 1].begin);
      if (!sorted_.empty() && is_long(spans_[i]))
        walk_members(spans_[i], out);
      else
        scan_row(spans_[i], out);
      counts[i] = out.cols.size() - before;
      check_count(out.cols.size(), max_edges_);
    }
    return out;
  }

 private:
  bool is_long(RowSpan span) const { return span.end - span.begin > kLongRow * num_members_; }

  // Room for `count` matches more.
  void reserve(Matches& out, int64_t count) const {
    out.cols.reserve(out.cols.size() + count);
    if (with_positions_) out.positions.reserve(out.cols.size() + count);
  }

  void finish(Matches& out, int64_t size) const {
    out.cols.set_size(size);
    if (with_positions_) out.positions.set_size(size);
  }

  void scan_row(RowSpan span, Matches& out) const {
    for (int64_t block = span.begin; block < span.end; block += kScanBlock) {
      const int64_t block_end = std::min(block + kScanBlock, span.end);
      reserve(out, block_end - block);
      int64_t* cols = out.cols.data();
      int64_t* positions = with_positions_ ? out.positions.data() : nullptr;
      int64_t size = out.cols.size();
      for (int64_t e = block; e < block_end; ++e) {
        if (e + table_.kAhead < span.end) table_.prefetch(indices_[e + table_.kAhead]);
        // Written before it is known whether it counts: most neighbors miss, without a pattern to predict.
        const int64_t found = table_.find(indices_[e]);
        cols[size] = found;
        if (positions != nullptr) positions[size] = e;
        size += found >= 0;
      }
      finish(out, size);
    }
  }

  void walk_members(RowSpan span, Matches& out) const {
    int64_t at = span.begin;
    for (const Member<Index>& member : sorted_) {
      at = gallop(indices_, at, span.end, member.id);
      for (; at < span.end && indices_[at] == member.id; ++at) {
        reserve(out, 1);
        const int64_t size = out.cols.size();
        out.cols.data()[size] = member.position;
        if (with_positions_) out.positions.data()[size] = at;
        finish(out, size + 1);
      }
      if (at == span.end) return;
    }
  }

  const Index* indices_;
  const std::vector<RowSpan>& spans_;
  const int64_t num_members_;
  const bool with_positions_;
  const int64_t max_edges_;
  const MemberTable<Index> table_;
  std::vector<Member<Index>> sorted_;
};

template <typename Id>
std::vector<RowSpan> find_rows(const Csr& csr, const Id* ids, const int64_t* rows, int64_t count) {
  const RowOffsets row_at(csr);
  const int64_t num_rows = csr.num_rows();
  std::vector<RowSpan> spans(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows != nullptr ? rows[i] : static_cast<int64_t>(ids[i]);
    if (row < 0 || row >= num_rows)
      throw UnknownId(message("ids[", i, "]: node id ", static_cast<int64_t>(ids[i]), ", row ", row,
                              ", is outside [0, ", num_rows, ")"));
    if (i + kPrefetchRows < count) {
      const int64_t ahead = rows != nullptr ? rows[i + kPrefetchRows] : static_cast<int64_t>(ids[i + kPrefetchRows]);
      if (ahead >= 0 && ahead < num_rows) row_at.prefetch(ahead);
    }
    spans[i] = row_at[row];
  }
  return spans;
}

void check_rows(const Tensor& ids, const Tensor& rows) {
  check_index_vector(ids, "ids");
  if (rows.defined()) check_int64_vector(rows, ids.shape[0], "rows");
}

template <typename Id>
void check_members(const Id* members, int64_t count, int64_t num_cols) {
  for (int64_t i = 0; i < count; ++i)
    if (members[i] < 0 || members[i] >= num_cols)
      throw UnknownId(
          message("members[", i, "]: node id ", static_cast<int64_t>(members[i]), " is outside [0, ", num_cols, ")"));
}

// Joins the chunks' matches; with one chunk, its memory is the result.
void join(PieceList<Matches>& found, const Csr& csr, bool with_edge_ids, int64_t max_edges, InducedEdges& out,
          ThreadPool& pool) {
  std::vector<std::pair<int64_t, Matches>> pieces = found.take();
  std::vector<int64_t> offsets{0};
  for (auto& piece : pieces) offsets.push_back(offsets.back() + piece.second.cols.size());
  const int64_t total = offsets.back();
  check_count(total, max_edges);
  const bool whole = pieces.size() == 1;
  out.cols = whole ? pieces[0].second.cols.view(0, total) : empty({total}, kInt64);
  if (with_edge_ids) out.edge_ids = empty({total}, kInt64);
  const EdgeIdReader edge_id_at(csr);
  pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Matches& piece = pieces[p].second;
      const int64_t count = piece.cols.size();
      if (!whole && count > 0)
        std::memcpy(out.cols.as<int64_t>() + offsets[p], piece.cols.data(), count * sizeof(int64_t));
      if (!with_edge_ids) continue;
      int64_t* edge_ids = out.edge_ids.as<int64_t>() + offsets[p];
      for (int64_t j = 0; j < count; ++j) edge_ids[j] = edge_id_at(piece.positions.data()[j]);
    }
  });
}

}  // namespace

InducedEdges induced_edges(const Csr& csr, const Tensor& ids, const Tensor& rows, const Tensor& members,
                           bool with_edge_ids, ThreadPool& pool, int64_t max_edges) {
  check_rows(ids, rows);
  check_index_vector(members, "members");
  const int64_t count = ids.shape[0], num_members = members.shape[0];
  std::vector<RowSpan> spans;
  dispatch_index(ids.dtype, "ids", [&](auto tag) {
    spans = find_rows(csr, ids.as<decltype(tag)>(), rows.defined() ? rows.as<int64_t>() : nullptr, count);
  });
  InducedEdges out;
  out.counts = empty({count}, kInt64);
  PieceList<Matches> found;
  dispatch_index(members.dtype, "members", [&](auto member_tag) {
    dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
      const auto* wanted = members.as<decltype(member_tag)>();
      check_members(wanted, num_members, csr.num_cols);
      const InducedKernel<decltype(index_tag)> kernel(csr, spans, wanted, num_members, with_edge_ids, max_edges);
      pool.parallel_for(count, kRowGrain, [&](int64_t begin, int64_t end) {
        found.add(begin, kernel.run(begin, end, out.counts.as<int64_t>()));
      });
    });
  });
  join(found, csr, with_edge_ids, max_edges, out, pool);
  return out;
}

Tensor pair_with_nodes(const Tensor& counts, const Tensor& neighbors) {
  check_int64_vector(counts, counts.numel(), "counts");
  check_int64_vector(neighbors, neighbors.numel(), "neighbors");
  const int64_t total = neighbors.numel();
  Tensor out = empty({2, total}, kInt64);
  std::copy_n(neighbors.as<int64_t>(), total, out.as<int64_t>());
  int64_t* const nodes = out.as<int64_t>() + total;
  int64_t filled = 0;
  for (int64_t i = 0; i < counts.numel(); ++i) {
    const int64_t count = counts.as<int64_t>()[i];
    if (count < 0 || count > total - filled)
      throw InvalidArgument(message("counts[", i, "]: expected 0 to ", total - filled, ", got ", count));
    std::fill_n(nodes + filled, count, i);
    filled += count;
  }
  if (filled != total) throw InvalidArgument(message("counts: expected a sum of ", total, ", got ", filled));
  return out;
}

}  // namespace gld
