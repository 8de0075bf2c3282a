#include "exchange/partition_server.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "graph/row_offsets.h"
#include "routing/narrowed.h"
#include "sampling/methods.h"
#include "sampling/negative.h"
#include "subgraph/induced.h"

namespace gld::exchange {
namespace {

constexpr size_t kQuotedBytes = 200;  // of a name that a stranger sent

// A name as Python shows a text, in ASCII.
std::string quoted(const std::string& name) {
  static const char* const kDigits = "0123456789abcdef";
  const bool has_apostrophe = name.find('\'') != std::string::npos && name.find('"') == std::string::npos;
  const char mark = has_apostrophe ? '"' : '\'';
  std::string out(1, mark);
  for (const char letter : name.substr(0, kQuotedBytes)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte >= 0x7f) {
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      if (letter == mark || letter == '\\') out += '\\';
      out += letter;
    }
  }
  return out + (name.size() > kQuotedBytes ? "..." : "") + mark;
}

// [n] as int64.
Tensor widened(const Tensor& values) {
  if (!values.defined() || values.dtype == kInt64) return values;
  const Tensor wide = empty(values.shape, kInt64);
  std::copy_n(values.as<int32_t>(), values.numel(), wide.as<int64_t>());
  return wide;
}

Tensor narrowed_or_same(Tensor counts) {
  Tensor narrow = narrowed_counts(counts);
  return narrow.defined() ? narrow : counts;
}

// What is left of the bytes that an answer may have.
class Allowance {
 public:
  explicit Allowance(int64_t bytes) : left_(bytes) {}
  int64_t left() const { return left_; }
  void take(const Tensor& tensor) {
    if (tensor.defined()) left_ = std::max<int64_t>(left_ - static_cast<int64_t>(tensor.nbytes()), 0);
  }

 private:
  int64_t left_;
};

// Rows in the order asked, checked, which are gathered when they are sent.
class GatheredRows : public rpc::Source {
 public:
  GatheredRows(std::shared_ptr<const RowStore> store, Tensor rows, std::shared_ptr<ThreadPool> pool)
      : store_(std::move(store)), rows_(std::move(rows)), pool_(std::move(pool)) {}

  size_t unit_bytes() const override { return store_->row_bytes; }
  void write(size_t begin, size_t count, void* out) override {
    const auto first = static_cast<int64_t>(begin / store_->row_bytes);
    Tensor rows = rows_, target;
    rows.data = rows_.as<int64_t>() + first;
    rows.shape = {static_cast<int64_t>(count / store_->row_bytes)};
    target.data = out;
    target.dtype = store_->dtype();
    target.shape = store_->parts[0].shape;
    target.shape[0] = rows.shape[0];
    target.owner = std::const_pointer_cast<RowStore>(store_);  // anybody: it is written before this returns
    gather_rows(*store_, rows, {}, target, *pool_);
  }

 private:
  const std::shared_ptr<const RowStore> store_;
  const Tensor rows_;  // int64
  const std::shared_ptr<ThreadPool> pool_;
};

// Counts, neighbors and edge ids of one part of an answer, in the fewest bytes.
void add_neighbors(std::vector<Answered>& answer, Allowance& allowance, Tensor counts, Tensor neighbors,
                   Tensor edge_ids) {
  answer.push_back({narrowed_or_same(std::move(counts)), nullptr});
  answer.push_back({fewest_bytes(neighbors), nullptr});
  answer.push_back({edge_ids.defined() ? fewest_bytes(edge_ids) : Tensor(), nullptr});
  for (size_t i = answer.size() - 3; i < answer.size(); ++i) allowance.take(answer[i].tensor);
}

void check_store(const HeldStore& store) {
  if ((store.book == nullptr) == (store.edge_ids == nullptr))
    throw InvalidArgument(message("stores: ", store.name, ": expected either a book or ids of edges"));
  if (!store.copies) return;
  const HeldCopies& copies = *store.copies;
  if (!copies.rows.exist()) throw InvalidArgument(message("stores: ", store.name, ": expected the rows of its copies"));
  check_int64_vector(copies.ids, copies.ids.numel(), "copies");
  check_int64_vector(copies.places, copies.ids.numel(), "copies");
}

}  // namespace

PartitionServer::PartitionServer(HeldPartition held) : held_(std::move(held)) {
  if (held_.pool == nullptr) throw InvalidArgument("pool: expected one, got none");
  for (const HeldEdges& edges : held_.edges)
    if (edges.graph == nullptr || edges.book == nullptr)
      throw InvalidArgument("edges: expected a graph and a book of each type");
  std::vector<std::string> here;
  for (const HeldStore& store : held_.stores) {
    check_store(store);
    stores_.emplace(store.name, &store);
    if (store.own.exist()) here.push_back(store.name);
  }
  std::sort(here.begin(), here.end());
  for (const std::string& name : here) known_stores_ += (known_stores_.empty() ? "" : ", ") + quoted(name);
}

rpc::OutgoingValue PartitionServer::answer(const rpc::IncomingValue& value) {
  const auto begun = std::chrono::steady_clock::now();
  const Query query = decode_query(value);
  rpc::OutgoingValue answer = encode_answer(std::visit([this](const auto& body) { return answer_body(body); }, query));
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begun;
  Counters& counters = answered_[query.index()];
  counters.count.fetch_add(1, std::memory_order_relaxed);
  counters.ns.fetch_add(static_cast<uint64_t>(taken.count()), std::memory_order_relaxed);
  counters.bytes.fetch_add(answer.payload_bytes(), std::memory_order_relaxed);
  return answer;
}

std::vector<PartitionServer::Answers> PartitionServer::answered() const {
  std::vector<Answers> found;
  for (const Counters& of : answered_) found.push_back({of.count, of.ns, of.bytes});
  return found;
}

// --- neighbors -------------------------------------------------------------------------------------------------------

const HeldEdges& PartitionServer::edges_of(int edge_type) const {
  if (edge_type < 0 || static_cast<size_t>(edge_type) >= held_.edges.size())
    throw InvalidArgument(message("edge_types: expected less than ", held_.edges.size(), ", got ", edge_type));
  return held_.edges[static_cast<size_t>(edge_type)];
}

Tensor PartitionServer::rows_of(const PartitionBook& book, const Tensor& ids) const {
  Tensor rows = empty({ids.numel()}, kInt64);
  book.local_rows(ids, held_.number, rows.as<int64_t>(), held_.pool.get());
  return rows;
}

std::vector<Answered> PartitionServer::answer_body(const HopQuery& query) const {
  std::vector<Answered> answer;
  Allowance allowance(held_.max_answer_bytes);
  for (const HopQuery::Part& part : query.parts) {
    const HeldEdges& edges = edges_of(part.edge_type);
    const Tensor rows = rows_of(*edges.book, part.ids);
    const bool reads_weights = traits_of(part.draw.how.method).reads_weights;
    if (reads_weights && edges.weighted == nullptr)
      throw InvalidArgument("with_weight, strategy: weights are to be read, but the graph has none");
    const Csr& graph = reads_weights ? edges.weighted->get() : *edges.graph;
    const size_t neighbor_bytes = graph.indices.dtype.size() + (query.with_edge_ids ? sizeof(int64_t) : 0);
    const HopNodes nodes{part.ids, rows, widened(part.trees), widened(part.times)};
    OneHop hop =
        sample_neighbors(graph, nodes, part.draw, *held_.pool, allowance.left() / static_cast<int64_t>(neighbor_bytes));
    add_neighbors(answer, allowance, std::move(hop.counts), std::move(hop.neighbors), std::move(hop.edge_ids));
  }
  return answer;
}

std::vector<Answered> PartitionServer::answer_body(const InducedQuery& query) const {
  std::vector<Answered> answer;
  Allowance allowance(held_.max_answer_bytes);
  for (const InducedQuery::Part& part : query.parts) {
    const HeldEdges& edges = edges_of(part.edge_type);
    const Tensor rows = rows_of(*edges.book, part.ids);
    if (part.member_type < 0 || static_cast<size_t>(part.member_type) >= query.members.size())
      throw InvalidArgument(
          message("member_types: expected less than ", query.members.size(), ", got ", part.member_type));
    const Tensor& members = query.members[static_cast<size_t>(part.member_type)];
    const int64_t edge_bytes = sizeof(int64_t) * (query.with_edge_ids ? 2 : 1);
    InducedEdges found = induced_edges(*edges.graph, part.ids, rows, members, query.with_edge_ids, *held_.pool,
                                       allowance.left() / edge_bytes);
    add_neighbors(answer, allowance, std::move(found.counts), std::move(found.cols), std::move(found.edge_ids));
  }
  return answer;
}

std::vector<Answered> PartitionServer::answer_body(const HasEdgesQuery& query) const {
  const HeldEdges& edges = edges_of(query.edge_type);
  return {{has_edges(*edges.graph, rows_of(*edges.book, query.ids), query.neighbors, *held_.pool), nullptr}};
}

std::vector<Answered> PartitionServer::answer_body(const DegreesQuery& query) const {
  const HeldEdges& edges = edges_of(query.edge_type);
  return {{narrowed_or_same(degrees_of(*edges.graph, rows_of(*edges.book, query.ids))), nullptr}};
}

// --- rows ------------------------------------------------------------------------------------------------------------

const HeldStore& PartitionServer::store_of(const std::string& name) const {
  const auto found = stores_.find(name);
  if (found == stores_.end())
    throw InvalidArgument(message("stores: expected one of [", known_stores_, "], got ", quoted(name)));
  if (!found->second->own.exist())
    throw PartitionFormat(
        message(name, ": partition ", held_.number, " has no such rows, others have: a directory is incomplete"));
  return *found->second;
}

Tensor PartitionServer::owners_of(const PartitionBook& book, const Tensor& ids) const {
  Tensor owners = empty({ids.numel()}, kInt32);
  book.locate(ids, owners.as<int32_t>(), nullptr, held_.pool.get());
  return owners;
}

// Rows of the partition's own ids among its own, and of others' among the copies.
Tensor PartitionServer::rows_with_copies(const HeldStore& store, const Tensor& ids, bool* has_others) const {
  const int64_t count = ids.numel();
  const Tensor owner_of = empty({count}, kInt32), found = empty({count}, kInt64);
  const auto* const owners = owner_of.as<int32_t>();
  auto* const rows = found.as<int64_t>();
  store.book->locate(ids, owner_of.as<int32_t>(), rows, held_.pool.get());
  *has_others = std::any_of(owners, owners + count, [this](int32_t owner) { return owner != held_.number; });
  if (!*has_others) return found;
  const auto* const first = store.copies->ids.as<int64_t>();
  const auto* const last = first + store.copies->ids.numel();
  dispatch_index(ids.dtype, "ids", [&](auto tag) {
    const auto* const asked = ids.as<decltype(tag)>();
    for (int64_t i = 0; i < count; ++i) {
      if (owners[i] == held_.number) continue;
      const auto id = static_cast<int64_t>(asked[i]);
      const int64_t* const place = std::lower_bound(first, last, id);
      if (place == last || *place != id)
        throw UnknownId(message("ids: id ", id, " has no row here, and no copy of one"));
      rows[i] = store.copies->places.as<int64_t>()[place - first];
    }
  });
  return found;
}

PartitionServer::Found PartitionServer::find(const HeldStore& store, const Tensor& ids) const {
  if (store.book == nullptr) {
    const Tensor rows = store.edge_ids->get().find(ids, held_.pool.get());
    const auto* const first = rows.as<int64_t>();
    const auto* const missing = std::find(first, first + rows.numel(), -1);
    if (missing == first + rows.numel()) return {store.own, rows};
    const int64_t place = missing - first;
    const int64_t id = ids.dtype == kInt32 ? ids.as<int32_t>()[place] : ids.as<int64_t>()[place];
    throw UnknownId(message("ids[", place, "]: edge ", id, " is not one of partition ", held_.number));
  }
  if (!store.copies) return {store.own, rows_of(*store.book, ids)};
  bool has_others = false;
  const Tensor rows = rows_with_copies(store, ids, &has_others);
  return {has_others ? store.copies->rows : store.own, rows};
}

Answered PartitionServer::gather(const Found& found, int64_t max_bytes) const {
  const auto row_bytes = static_cast<int64_t>(std::max<size_t>(found.in.row_bytes(), 1));
  if (found.rows.numel() > max_bytes / row_bytes)
    throw InvalidArgument(message("ids: expected at most ", max_bytes / row_bytes, " rows of ", row_bytes,
                                  " bytes in one answer, got ", found.rows.numel()));
  if (found.in.store == nullptr) return {found.in.gather(found.rows), nullptr};
  const RowStore& store = *found.in.store;
  check_rows(store, found.rows);
  // A disk may fail, which cannot be told any more once the answer is being sent.
  if (store.disk != nullptr) return {gather_rows(store, found.rows, {}, {}, *held_.pool), nullptr};
  Tensor described;
  described.dtype = store.dtype();
  described.shape = store.parts[0].shape;
  described.shape[0] = found.rows.numel();
  const auto source = std::make_shared<GatheredRows>(found.in.store, found.rows, held_.pool);
  described.owner = source;
  return {described, source};
}

std::vector<Answered> PartitionServer::answer_body(const RowsQuery& query) const {
  std::vector<Answered> answer;
  Allowance allowance(held_.max_answer_bytes);
  for (const RowsQuery::Part& part : query.parts) {
    answer.push_back(gather(find(store_of(part.store), part.ids), allowance.left()));
    allowance.take(answer.back().tensor);
  }
  return answer;
}

std::vector<Answered> PartitionServer::answer_body(const OwnedQuery& query) const {
  std::vector<Answered> answer;
  for (const RowsQuery::Part& part : query.parts) {
    const HeldStore& store = store_of(part.store);
    const int64_t count = part.ids.numel();
    answer.push_back({empty({count}, kUInt8), nullptr});
    auto* const is_owned = answer.back().tensor.as<uint8_t>();
    if (store.book != nullptr) {
      const Tensor owners = owners_of(*store.book, part.ids);
      for (int64_t i = 0; i < count; ++i) is_owned[i] = owners.as<int32_t>()[i] == held_.number;
    } else {
      const Tensor rows = store.edge_ids->get().find(part.ids, held_.pool.get());
      for (int64_t i = 0; i < count; ++i) is_owned[i] = rows.as<int64_t>()[i] >= 0;
    }
  }
  return answer;
}

}  // namespace gld::exchange
