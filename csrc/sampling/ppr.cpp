#include "sampling/ppr.h"

#include <algorithm>
#include <cstring>
#include <deque>
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

// Pushes from one seed at a time; the tables stay for the next.
template <typename Index>
class Pusher {
 public:
  Pusher(const Csr& csr, double alpha, double epsilon)
      : row_at_(csr), num_nodes_(csr.num_cols), indices_(csr.indices.as<Index>()), alpha_(alpha), epsilon_(epsilon) {}

  // Appends the `top_k` best of the seed; gives their number.
  int64_t run(int64_t seed, int64_t top_k, std::vector<Scored>& out) {
    table_.begin(kExpectedNodes);
    nodes_.clear();
    receive(seed, 1.0);
    if (queue_.empty()) push(0);  // a seed of many edges, too, has neighbors worth ranking
    while (!queue_.empty()) {
      const uint32_t local = queue_.front();
      queue_.pop_front();
      push(local);
    }
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
    int64_t id, begin, degree;
    double score, residual;
    bool queued;
  };

  void receive(int64_t id, double mass) {
    uint32_t is_new;
    const uint32_t local = table_.insert(id, static_cast<uint32_t>(nodes_.size()), &is_new);
    if (is_new) {
      check_neighbors(&id, 1, num_nodes_);
      const RowSpan row = row_at_[id];
      nodes_.push_back({id, row.begin, row.size(), 0, 0, false});
    }
    Node& node = nodes_[local];
    node.residual += mass;
    if (node.queued || !(node.residual > epsilon_ * static_cast<double>(node.degree))) return;
    node.queued = true;
    queue_.push_back(local);
  }

  void push(uint32_t local) {
    Node& node = nodes_[local];
    const int64_t begin = node.begin, degree = node.degree;
    const double mass = std::exchange(node.residual, 0.0);
    node.queued = false;
    if (degree == 0) {
      node.score += mass;
      return;
    }
    node.score += alpha_ * mass;
    const double share = (1 - alpha_) * mass / static_cast<double>(degree);
    for (int64_t e = begin; e < begin + degree; ++e) receive(indices_[e], share);  // may move `node`
  }

  const RowOffsets row_at_;
  const int64_t num_nodes_;
  const Index* indices_;
  const double alpha_, epsilon_;
  HashRelabelTable table_;
  std::vector<Node> nodes_;
  std::deque<uint32_t> queue_;  // each node at most once
};

void check_arguments(const Csr& csr, const Tensor& seeds, double alpha, double epsilon, int64_t top_k) {
  check_index_vector(seeds, "seeds");
  if (!(alpha > 0 && alpha < 1)) throw InvalidArgument(message("alpha: expected a number in (0, 1), got ", alpha));
  if (!(epsilon > 0)) throw InvalidArgument(message("epsilon: expected a number above 0, got ", epsilon));
  if (top_k < 1) throw InvalidArgument(message("top_k: expected at least 1, got ", top_k));
  if (csr.num_rows() != csr.num_cols)
    throw InvalidArgument(message("csr: expected edges from one node type to itself, got ", csr.num_rows(),
                                  " rows and ", csr.num_cols, " columns"));
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
  check_arguments(csr, seeds, alpha, epsilon, top_k);
  const int64_t count = seeds.shape[0];
  Tensor counts = empty({count}, kInt64);
  PieceList<Ranking> found;
  dispatch_index(seeds.dtype, "seeds", [&](auto seed_tag) {
    const auto* ids = seeds.as<decltype(seed_tag)>();
    for (int64_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= csr.num_rows())
        throw UnknownId(
            message("seeds[", i, "]: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", csr.num_rows(), ")"));
    dispatch_index(csr.indices.dtype, "indices", [&](auto index_tag) {
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        Pusher<decltype(index_tag)> pusher(csr, alpha, epsilon);
        Ranking ranking;
        for (int64_t i = begin; i < end; ++i) counts.as<int64_t>()[i] = pusher.run(ids[i], top_k, ranking.entries);
        found.add(begin, std::move(ranking));
      });
    });
  });
  return join(found, std::move(counts));
}

}  // namespace gld
