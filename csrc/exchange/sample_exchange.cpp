#include "exchange/sample_exchange.h"

#include <chrono>
#include <utility>

#include "common/error.h"
#include "common/rng.h"
#include "exchange/queries.h"

namespace gld::exchange {
namespace {

// Entries [begin, end) of a vector; undefined of an undefined one.
Tensor slice(const Tensor& vector, int64_t begin, int64_t end) {
  if (!vector.defined()) return {};
  Tensor part = vector;
  part.data = static_cast<char*>(vector.data) + begin * static_cast<int64_t>(vector.dtype.size());
  part.shape = {end - begin};
  return part;
}

// Entries in the order of `positions`, both int64; undefined of an undefined one.
Tensor taken(const Tensor& vector, const Tensor& positions) {
  if (!vector.defined()) return {};
  Tensor out = empty({positions.numel()}, kInt64);
  const int64_t *from = vector.as<int64_t>(), *at = positions.as<int64_t>();
  int64_t* const to = out.as<int64_t>();
  for (int64_t i = 0; i < positions.numel(); ++i) to[i] = from[at[i]];
  return out;
}

}  // namespace

void check_graph(const PartitionedGraph& graph) {
  const size_t num_types = graph.edge_types.size();
  if (graph.books.size() != num_types) throw InvalidArgument("books: expected one for each edge type");
  if (graph.draws.size() != num_types) throw InvalidArgument("draws: expected one for each edge type");
  for (const auto& hop : graph.fanouts)
    if (hop.size() != num_types) throw InvalidArgument("fanouts: expected one for each edge type in every hop");
  for (const auto& book : graph.books)
    if (book == nullptr || book->num_partitions() != graph.num_partitions())
      throw InvalidArgument(message("books: expected those of ", graph.num_partitions(), " partitions"));
  for (const auto& pieces : graph.pieces) {
    if (pieces.empty()) continue;
    if (pieces.size() != num_types) throw InvalidArgument("pieces: expected one for each edge type, or none");
    for (const auto& piece : pieces)
      if (piece == nullptr) throw InvalidArgument("pieces: expected a graph for each edge type");
  }
}

SampleExchange::SampleExchange(std::shared_ptr<const PartitionedGraph> graph, std::vector<Batch> batches,
                               std::shared_ptr<ThreadPool> pool, bool leaves_edges, std::shared_ptr<const RowPlan> rows)
    : graph_(std::move(graph)),
      batches_(std::move(batches)),
      pool_(std::move(pool)),
      leaves_edges_(leaves_edges),
      rows_(std::move(rows)) {}

std::vector<Asked> SampleExchange::next() {
  std::vector<Asked> asked;
  // A hop that nobody else need be asked for takes no round.
  while (hop_ < graph_->fanouts.size()) {
    begin_hop();
    for (int partition = 0; partition < graph_->num_partitions(); ++partition) {
      if (graph_->is_here(partition)) continue;
      HopQuery query;
      query.with_edge_ids = graph_->with_edge_ids;
      std::vector<size_t> about;
      for (size_t i = 0; i < hops_.size(); ++i) {
        const Frontier& frontier = *hops_[i].frontier;
        if (frontier.count(partition) == 0) continue;
        const int64_t begin = frontier.bounds()[partition], end = frontier.bounds()[partition + 1];
        const auto sent = [&](const Tensor& values) {
          return values.defined() ? fewest_bytes(slice(values, begin, end)) : Tensor{};
        };
        query.parts.push_back(
            {hops_[i].edge_type, hops_[i].draw, sent(frontier.split.ids), sent(frontier.trees), sent(frontier.times)});
        about.push_back(i);
      }
      if (about.empty()) continue;
      asked.push_back({partition, encode_query(query)});
      sent_.push_back({partition, std::move(about)});
    }
    if (!asked.empty()) return asked;
    meanwhile();
    end_hop();
  }
  return is_sampled_ ? asked : finish();
}

std::vector<Asked> SampleExchange::finish() {
  is_sampled_ = true;
  sampled_at_ns_ = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  for (const Batch& batch : batches_) finished_.push_back(batch.builder->finish(leaves_edges_, pool_.get()));
  if (rows_ == nullptr) return {};
  std::vector<std::vector<RowLookup::Wanted>> wanted;
  for (const SampledSubgraph& batch : finished_) {
    auto& of_batch = wanted.emplace_back();
    for (const RowGroup& group : rows_->groups) {
      const auto node_type = static_cast<size_t>(group.node_type);
      if (node_type >= batch.nodes.size())
        throw InvalidArgument(message("rows: expected those of ", batch.nodes.size(), " node types"));
      of_batch.push_back({batch.nodes[node_type], {}});
    }
  }
  lookup_ = std::make_shared<RowLookup>(rows_, pool_);
  return lookup_->begin(wanted);
}

void SampleExchange::begin_hop() {
  sent_.clear();
  hops_.clear();
  for (const Batch& batch : batches_) begin_hop_of(batch);
}

void SampleExchange::begin_hop_of(const Batch& batch) {
  std::map<int, std::shared_ptr<const Frontier>> frontiers;  // by node type: edge types share them
  const auto& fanouts = graph_->fanouts[hop_];
  for (size_t type = 0; type < fanouts.size(); ++type) {
    if (fanouts[type] == 0) continue;
    const int seed_type = graph_->edge_types[type].seed_type;
    auto& frontier = frontiers[seed_type];
    if (frontier == nullptr) {
      const HopNodes nodes = batch.builder->frontier(seed_type);
      const bool is_lean = !nodes.trees.defined() && !nodes.times.defined();
      Split split = split_by_owner(nodes.ids, *graph_->books[type], pool_.get(), is_lean);
      Tensor trees = taken(nodes.trees, split.positions), times = taken(nodes.times, split.positions);
      frontier = std::make_shared<Frontier>(Frontier{std::move(split), std::move(trees), std::move(times)});
    }
    const HopDraw draw{fanouts[type], graph_->draws[type], draw_key(graph_->seed, batch.epoch, batch.index, hop_, type),
                       graph_->with_edge_ids};
    hops_.push_back({batch.builder.get(), static_cast<int>(type), frontier, draw,
                     std::vector<NeighborPart>(static_cast<size_t>(graph_->num_partitions()))});
  }
}

void SampleExchange::meanwhile() {
  for (Hop& hop : hops_) {
    const Frontier& frontier = *hop.frontier;
    for (int partition = 0; partition < graph_->num_partitions(); ++partition) {
      if (!graph_->is_here(partition) || frontier.count(partition) == 0) continue;
      const int64_t begin = frontier.bounds()[partition], end = frontier.bounds()[partition + 1];
      const HopNodes nodes{slice(frontier.split.ids, begin, end), slice(frontier.split.rows, begin, end),
                           slice(frontier.trees, begin, end), slice(frontier.times, begin, end)};
      OneHop found = sample_neighbors(*graph_->pieces[partition][hop.edge_type], nodes, hop.draw, *pool_);
      hop.parts[partition] = {std::move(found.counts), std::move(found.neighbors), std::move(found.edge_ids)};
    }
  }
}

void SampleExchange::take(size_t i, const rpc::IncomingValue& answer) {
  if (lookup_ != nullptr) return lookup_->take(i, answer);
  const Sent& sent = sent_.at(i);
  constexpr size_t kTensors = 3;  // counts, neighbors, edge ids
  std::vector<Tensor> tensors = decode_answer(answer, kTensors * sent.hops.size());
  for (size_t part = 0; part < sent.hops.size(); ++part) {
    Tensor* const of_part = &tensors[kTensors * part];
    hops_[sent.hops[part]].parts[sent.partition] = {std::move(of_part[0]), std::move(of_part[1]),
                                                    std::move(of_part[2])};
  }
}

void SampleExchange::stitch() {
  if (!is_sampled_) end_hop();
}

void SampleExchange::end_hop() {
  for (Hop& hop : hops_) hop.builder->add_hop(hop.edge_type, hop.frontier->split, hop.parts, hop.draw.fanout);
  for (const Batch& batch : batches_) batch.builder->next_hop();
  hops_.clear();
  ++hop_;
}

}  // namespace gld::exchange
