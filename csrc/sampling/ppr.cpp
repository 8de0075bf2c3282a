#include "sampling/ppr.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/row_offsets.h"
#include "sampling/relabel_table.h"
#include "subgraph/pieces.h"

namespace gld {
namespace {

constexpr int64_t kExpectedNodes = 1024;  // around a seed; more make the table grow

struct Scored {
  int64_t node;
  float score;
};

// By score, then id: the scores as they are given out, so that equal ones are seen in the order of ids.
bool ranks_before(const Scored& a, const Scored& b) {
  return a.score > b.score || (a.score == b.score && a.node < b.node);
}

// What one chunk of seeds found, one seed after another.
struct Ranking {
  std::vector<Scored> entries;
};

// The rows of a graph that is here.
template <typename Index>
class HeldRowsOf {
 public:
  static constexpr bool kAreAllHere = true;

  explicit HeldRowsOf(const Csr& csr) : row_at_(csr), num_nodes_(csr.num_cols), indices_(csr.indices.as<Index>()) {}

  int64_t degree(int64_t id) const {
    check_neighbors(&id, 1, num_nodes_);
    return row_at_[id].size();
  }
  template <typename Body>
  void for_each_neighbor(int64_t id, const Body& body) const {
    const RowSpan row = row_at_[id];
    for (int64_t e = row.begin; e < row.end; ++e) body(static_cast<int64_t>(indices_[e]));
  }

 private:
  const RowOffsets row_at_;
  const int64_t num_nodes_;
  const Index* indices_;
};

// What was told of a graph that lies elsewhere.
class ToldRows {
 public:
  static constexpr bool kAreAllHere = false;

  void tell_degree(int64_t id, int64_t degree) { nodes_[id].degree = degree; }
  void tell_row(int64_t id, const int64_t* neighbors) { nodes_[id].neighbors = neighbors; }
  void keep(Tensor neighbors) { kept_.push_back(std::move(neighbors)); }

  bool has_degree(int64_t id) const { return nodes_.count(id) != 0; }
  bool has_row(int64_t id) const {
    const Node& node = nodes_.at(id);
    return node.degree == 0 || node.neighbors != nullptr;
  }
  int64_t degree(int64_t id) const { return nodes_.at(id).degree; }
  template <typename Body>
  void for_each_neighbor(int64_t id, const Body& body) const {
    const Node& node = nodes_.at(id);
    for (int64_t e = 0; e < node.degree; ++e) body(node.neighbors[e]);
  }

 private:
  struct Node {
    int64_t degree = 0;
    const int64_t* neighbors = nullptr;
  };
  std::unordered_map<int64_t, Node> nodes_;
  std::vector<Tensor> kept_;
};

// Ids that are asked for.
struct Missing {
  std::vector<int64_t> degrees, rows;
};

// Pushes from one seed; the tables stay for the next.
template <typename Rows>
class Pusher {
 public:
  Pusher(const Rows& rows, double alpha, double epsilon) : rows_(rows), alpha_(alpha), epsilon_(epsilon) {}

  void begin(int64_t seed) {
    table_.begin(kExpectedNodes);
    nodes_.clear();
    receive(seed, 1.0);
    if (queue_.empty()) queue(0);  // a seed of many edges, too, has neighbors worth ranking
  }

  // Pushes until the end, or to a node that cannot be pushed yet: then `missing` has what those that wait need.
  void advance(Missing* missing) {
    while (!queue_.empty()) {
      const uint32_t local = queue_.front();
      if constexpr (!Rows::kAreAllHere)
        if (!can_push(nodes_[local].id)) return add_missing(missing);
      queue_.pop_front();
      push(local);
    }
  }

  // Appends the `top_k` best of the seed; gives their number.
  int64_t take_best(int64_t top_k, std::vector<Scored>& out) const {
    const size_t first = out.size();
    for (const Node& node : nodes_)
      if (node.score > 0) out.push_back({node.id, static_cast<float>(node.score)});
    const auto begin = out.begin() + first;
    const int64_t kept = std::min<int64_t>(top_k, out.end() - begin);
    std::partial_sort(begin, begin + kept, out.end(), ranks_before);
    out.resize(first + kept);
    return kept;
  }

 private:
  struct Node {
    int64_t id, degree;
    double score, residual;
    bool queued;
  };

  void receive(int64_t id, double mass) {
    uint32_t is_new;
    const uint32_t local = table_.insert(id, static_cast<uint32_t>(nodes_.size()), &is_new);
    if (is_new) nodes_.push_back({id, rows_.degree(id), 0, 0, false});
    Node& node = nodes_[local];
    node.residual += mass;
    if (!node.queued && node.residual > epsilon_ * static_cast<double>(node.degree)) queue(local);
  }

  void queue(uint32_t local) {
    nodes_[local].queued = true;
    queue_.push_back(local);
  }

  void push(uint32_t local) {
    Node& node = nodes_[local];
    const double mass = std::exchange(node.residual, 0.0);
    node.queued = false;
    if (node.degree == 0) {
      node.score += mass;
      return;
    }
    node.score += alpha_ * mass;
    const double share = (1 - alpha_) * mass / static_cast<double>(node.degree);
    rows_.for_each_neighbor(node.id, [&](int64_t id) { receive(id, share); });  // may move `node`
  }

  bool can_push(int64_t id) const {
    if (!rows_.has_row(id)) return false;
    bool knows_all = true;
    rows_.for_each_neighbor(id, [&](int64_t other) { knows_all = knows_all && rows_.has_degree(other); });
    return knows_all;
  }

  void add_missing(Missing* missing) const {
    for (const uint32_t local : queue_) {
      const int64_t id = nodes_[local].id;
      if (!rows_.has_row(id))
        missing->rows.push_back(id);
      else
        rows_.for_each_neighbor(id, [&](int64_t other) {
          if (!rows_.has_degree(other)) missing->degrees.push_back(other);
        });
    }
  }

  const Rows& rows_;
  const double alpha_, epsilon_;
  HashRelabelTable table_;
  std::vector<Node> nodes_;
  std::deque<uint32_t> queue_;  // each node at most once
};

void check_top_k(int64_t top_k) {
  if (top_k < 1) throw InvalidArgument(message("top_k: expected at least 1, got ", top_k));
}

void check_arguments(const Tensor& seeds, double alpha, double epsilon) {
  check_index_vector(seeds, "seeds");
  if (!(alpha > 0 && alpha < 1)) throw InvalidArgument(message("alpha: expected a number in (0, 1), got ", alpha));
  if (!(epsilon > 0)) throw InvalidArgument(message("epsilon: expected a number above 0, got ", epsilon));
}

template <typename Id>
void check_seeds(const Id* ids, int64_t count, int64_t num_nodes) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= num_nodes)
      throw UnknownId(
          message("seeds[", i, "]: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", num_nodes, ")"));
}

// Ids in ascending order, each once.
Tensor distinct(std::vector<int64_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  Tensor out = empty({static_cast<int64_t>(ids.size())}, kInt64);
  std::copy(ids.begin(), ids.end(), out.as<int64_t>());
  return out;
}

PprScores join(PieceList<Ranking>& found, Tensor counts) {
  const auto pieces = found.take();
  int64_t total = 0;
  for (const auto& piece : pieces) total += static_cast<int64_t>(piece.second.entries.size());
  PprScores out{std::move(counts), empty({total}, kInt64), empty({total}, kFloat32)};
  int64_t* node = out.nodes.as<int64_t>();
  float* score = out.scores.as<float>();
  for (const auto& piece : pieces)
    for (const Scored& entry : piece.second.entries) {
      *node++ = entry.node;
      *score++ = entry.score;
    }
  return out;
}

}  // namespace

PprScores ppr_topk(const Csr& csr, const Tensor& seeds, double alpha, double epsilon, int64_t top_k, ThreadPool& pool) {
  check_arguments(seeds, alpha, epsilon);
  check_top_k(top_k);
  if (csr.num_rows() != csr.num_cols)
    throw InvalidArgument(message("csr: expected edges from one node type to itself, got ", csr.num_rows(),
                                  " rows and ", csr.num_cols, " columns"));
  const int64_t count = seeds.shape[0];
  Tensor counts = empty({count}, kInt64);
  PieceList<Ranking> found;
  dispatch_index(seeds.dtype, "seeds", [&](auto seed_tag) {
    const auto* ids = seeds.as<decltype(seed_tag)>();
    check_seeds(ids, count, csr.num_rows());
    dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
      const HeldRowsOf<decltype(index_tag)> rows(csr);
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        Pusher<HeldRowsOf<decltype(index_tag)>> pusher(rows, alpha, epsilon);
        Ranking ranking;
        for (int64_t i = begin; i < end; ++i) {
          pusher.begin(ids[i]);
          pusher.advance(nullptr);
          counts.as<int64_t>()[i] = pusher.take_best(top_k, ranking.entries);
        }
        found.add(begin, std::move(ranking));
      });
    });
  });
  return join(found, std::move(counts));
}

struct PprPushes::State {
  std::vector<int64_t> seeds;
  int64_t num_nodes;
  double alpha, epsilon;
  ToldRows rows;
  std::vector<std::unique_ptr<Pusher<ToldRows>>> pushers;  // of each seed, none before its degree is known
};

PprPushes::PprPushes(const Tensor& seeds, int64_t num_nodes, double alpha, double epsilon) : state_(new State) {
  check_arguments(seeds, alpha, epsilon);
  state_->num_nodes = num_nodes;
  state_->alpha = alpha;
  state_->epsilon = epsilon;
  dispatch_index(seeds.dtype, "seeds", [&](auto tag) {
    const auto* ids = seeds.as<decltype(tag)>();
    check_seeds(ids, seeds.numel(), num_nodes);
    state_->seeds.assign(ids, ids + seeds.numel());
  });
  state_->pushers.resize(state_->seeds.size());
}

PprPushes::~PprPushes() = default;

PprPushes::Lacking PprPushes::advance(ThreadPool& pool) {
  State& state = *state_;
  PieceList<Missing> found;
  pool.parallel_for(static_cast<int64_t>(state.seeds.size()), 1, [&](int64_t begin, int64_t end) {
    Missing missing;
    for (int64_t i = begin; i < end; ++i) {
      auto& pusher = state.pushers[i];
      if (pusher == nullptr) {
        if (!state.rows.has_degree(state.seeds[i])) {
          missing.degrees.push_back(state.seeds[i]);
          continue;
        }
        pusher = std::make_unique<Pusher<ToldRows>>(state.rows, state.alpha, state.epsilon);
        pusher->begin(state.seeds[i]);
      }
      pusher->advance(&missing);
    }
    found.add(begin, std::move(missing));
  });
  Missing all;
  for (const auto& piece : found.take()) {
    all.degrees.insert(all.degrees.end(), piece.second.degrees.begin(), piece.second.degrees.end());
    all.rows.insert(all.rows.end(), piece.second.rows.begin(), piece.second.rows.end());
  }
  return {distinct(all.degrees), distinct(all.rows)};
}

void PprPushes::give_degrees(const Tensor& ids, const Tensor& degrees) {
  check_int64_vector(ids, ids.numel(), "ids");
  check_int64_vector(degrees, ids.numel(), "degrees");
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t degree = degrees.as<int64_t>()[i];
    if (degree < 0) throw InvalidArgument(message("degrees[", i, "]: expected a count, got ", degree));
    state_->rows.tell_degree(ids.as<int64_t>()[i], degree);
  }
}

void PprPushes::give_rows(const Tensor& ids, const Tensor& counts, const Tensor& neighbors) {
  check_int64_vector(ids, ids.numel(), "ids");
  check_int64_vector(counts, ids.numel(), "counts");
  check_int64_vector(neighbors, neighbors.numel(), "neighbors");
  check_neighbors(neighbors.as<int64_t>(), neighbors.numel(), state_->num_nodes);
  int64_t begin = 0;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.as<int64_t>()[i], count = counts.as<int64_t>()[i];
    if (!state_->rows.has_degree(id) || state_->rows.degree(id) != count || count > neighbors.numel() - begin)
      throw InvalidArgument(message("counts[", i, "]: expected the degree of node ", id, ", got ", count));
    state_->rows.tell_row(id, neighbors.as<int64_t>() + begin);
    begin += count;
  }
  state_->rows.keep(neighbors);
}

PprScores PprPushes::best(int64_t top_k, ThreadPool& pool) const {
  check_top_k(top_k);
  const auto count = static_cast<int64_t>(state_->seeds.size());
  Tensor counts = empty({count}, kInt64);
  PieceList<Ranking> found;
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    Ranking ranking;
    for (int64_t i = begin; i < end; ++i) {
      if (state_->pushers[i] == nullptr) throw InvalidArgument("advance: expected a call until nothing is missing");
      counts.as<int64_t>()[i] = state_->pushers[i]->take_best(top_k, ranking.entries);
    }
    found.add(begin, std::move(ranking));
  });
  return join(found, std::move(counts));
}

}  // namespace gld
