#include "sampling/hgt_budgets.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "common/rng.h"
#include "graph/row_offsets.h"
#include "sampling/weighted_picks.h"

namespace gld {
namespace {

constexpr double kTaken = -std::numeric_limits<double>::infinity();  // no share makes a budget of it
constexpr int64_t kLookAhead = 24;                                   // neighbors whose place in the table is fetched

// A node in a race: it is picked before those whose clocks ring later.
struct Runner {
  double clock;
  int64_t id;
  uint32_t local;
  bool operator<(const Runner& other) const { return clock < other.clock || (clock == other.clock && id < other.id); }
};

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int kMostPasses = 4;  // over the nodes, to find those that are picked; the last looks at all of them

// Keeps the `capacity` first of those that are offered, at least 1.
class FirstRunners {
 public:
  // In `runners`; nobody after `limit` counts.
  FirstRunners(int64_t capacity, double limit, std::vector<Runner>& runners)
      : capacity_(capacity), limit_(limit), runners_(runners) {
    runners_.clear();
  }
  // No later clock is among the first.
  double limit() const { return limit_; }
  void offer(const Runner& runner) {
    runners_.push_back(runner);
    if (static_cast<int64_t>(runners_.size()) == 2 * capacity_) cut();
  }
  // In the order of their clocks.
  void finish() {
    if (static_cast<int64_t>(runners_.size()) > capacity_) cut();
    std::sort(runners_.begin(), runners_.end());
  }

 private:
  void cut() {
    const auto last = runners_.begin() + (capacity_ - 1);
    std::nth_element(runners_.begin(), last, runners_.end());
    limit_ = last->clock;
    runners_.resize(capacity_);
  }

  const int64_t capacity_;
  double limit_;
  std::vector<Runner>& runners_;
};

// At most what exponential_of(stream) gives, and a tenth of its work: the first number where that is the fraction, and
// below 1 where it is not and there is a whole part.
inline double least_exponential_of(NodeStream stream) {
  return static_cast<double>(static_cast<int64_t>(stream.bits(0) >> 11)) * 0x1p-53;
}

}  // namespace

// The budgets of one type: nodes that were ever seen have local numbers, by first appearance.
class HgtBudgets::TypeBudgets {
 public:
  TypeBudgets(int64_t num_nodes, int64_t most_dense)
      : num_nodes_(num_nodes), table_(make_table(num_nodes, most_dense)) {}

  void begin() {
    std::visit([&](auto& table) { table.begin(num_nodes_); }, table_);
    ids_.clear();
    budgets_.clear();
  }

  template <typename Id>
  Tensor take(const Id* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= num_nodes_)
        throw UnknownId(
            message("seeds[", i, "]: node id ", static_cast<int64_t>(ids[i]), " is outside [0, ", num_nodes_, ")"));
    std::vector<int64_t> taken;
    taken.reserve(count);
    find(ids, count, [&](int64_t i, uint32_t local) {
      if (budgets_[local] == kTaken) return;
      budgets_[local] = kTaken;
      taken.push_back(static_cast<int64_t>(ids[i]));
    });
    Tensor out = empty({static_cast<int64_t>(taken.size())}, kInt64);
    std::copy(taken.begin(), taken.end(), out.as<int64_t>());
    return out;
  }

  template <typename Id>
  void add(const int64_t* counts, int64_t num_rows, const Id* neighbors, int64_t num_neighbors) {
    check_neighbors(neighbors, num_neighbors, num_nodes_);
    const int64_t* row = counts;
    int64_t end = 0;  // of the row's neighbors
    double share = 0;
    const int64_t* const rows_end = counts + num_rows;
    find(neighbors, num_neighbors, [&](int64_t i, uint32_t local) {
      while (i == end && row != rows_end) {
        share = 1.0 / static_cast<double>(*row);
        end += *row++;
      }
      budgets_[local] += share;
    });
  }

  Tensor pick(int64_t count, uint64_t key) {
    double total = 0;
    int64_t num_left = 0;
    for (const double budget : budgets_) {
      const bool is_left = budget > 0;
      total += is_left ? budget * budget : 0;
      num_left += is_left;
    }
    const int64_t wanted = std::min(count, num_left);
    runners_.clear();
    // Whose clocks have not rung by the limit are not looked at closely. Until a clock rings it is as if they began
    // anew, `left` a second: where too few have rung, the limit is moved by what the others need. It changes no pick.
    double limit = 0;
    for (int pass = 1; static_cast<int64_t>(runners_.size()) < wanted; ++pass) {
      double left = total;
      for (const Runner& runner : runners_) left -= budgets_[runner.local] * budgets_[runner.local];
      const auto missing = static_cast<double>(wanted - static_cast<int64_t>(runners_.size()));
      const bool is_last = pass == kMostPasses || wanted == num_left || !(left > 0);
      limit = is_last ? kNoLimit : limit + (1.25 * missing + 8) / left;
      race(key, wanted, limit);
    }
    Tensor out = empty({static_cast<int64_t>(runners_.size())}, kInt64);
    int64_t* id = out.as<int64_t>();
    for (const Runner& runner : runners_) {
      budgets_[runner.local] = kTaken;
      *id++ = runner.id;
    }
    return out;
  }

 private:
  using Table = std::variant<DenseRelabelTable, HashRelabelTable>;

  // The first `wanted` of those whose clocks ring by `limit`, in that order, into `runners_`.
  void race(uint64_t key, int64_t wanted, double limit) {
    FirstRunners first(wanted, limit, runners_);
    const auto num_seen = static_cast<int64_t>(ids_.size());
    for (int64_t local = 0; local < num_seen; ++local) {
      const double budget = budgets_[local];
      if (!(budget > 0)) continue;
      const double weight = budget * budget;
      const NodeStream stream(key, ids_[local]);
      // Quotients by the same number are in the order of what is divided, rounded too.
      if (least_exponential_of(stream) / weight > first.limit()) continue;
      const double clock = exponential_of(stream) / weight;
      if (clock <= first.limit()) first.offer({clock, ids_[local], static_cast<uint32_t>(local)});
    }
    first.finish();
  }

  static Table make_table(int64_t num_nodes, int64_t most_dense) {
    if (num_nodes <= most_dense) return Table(std::in_place_type<DenseRelabelTable>, num_nodes);
    return Table(std::in_place_type<HashRelabelTable>);
  }

  // Calls body(i, local) of each of `ids`; those that were not seen yet have a budget of 0.
  template <typename Id, typename Body>
  void find(const Id* ids, int64_t count, Body body) {
    // Room for all that may be new, so that nothing moves on the way.
    const size_t num_seen = ids_.size();
    ids_.resize(num_seen + count + 1);
    budgets_.resize(num_seen + count, 0.0);
    auto next = static_cast<uint32_t>(num_seen);
    std::visit(
        [&](auto& table) {
          auto view = table.view(count);
          for (int64_t i = 0; i < std::min(kLookAhead, count); ++i) view.prefetch(ids[i]);
          for (int64_t i = 0; i < count; ++i) {
            if (i + kLookAhead < count) view.prefetch(ids[i + kLookAhead]);
            uint32_t is_new;
            const uint32_t local = view.insert(ids[i], next, &is_new);
            ids_[next] = static_cast<int64_t>(ids[i]);  // where it is not new, something else takes its place
            next += is_new;
            body(i, local);
          }
        },
        table_);
    ids_.resize(next);
    budgets_.resize(next);
  }

  const int64_t num_nodes_;
  Table table_;
  std::vector<int64_t> ids_;
  std::vector<double> budgets_;  // kTaken of nodes of the batch
  std::vector<Runner> runners_;
};

HgtBudgets::HgtBudgets(std::vector<int64_t> num_nodes, int64_t most_dense) {
  for (int64_t count : num_nodes) {
    if (count < 0) throw InvalidArgument(message("num_nodes: expected counts of nodes, got ", count));
    types_.push_back(std::make_unique<TypeBudgets>(count, most_dense));
  }
  begin();
}

HgtBudgets::~HgtBudgets() = default;

HgtBudgets::TypeBudgets& HgtBudgets::of_type(int node_type) {
  if (node_type < 0 || node_type >= num_types())
    throw InvalidArgument(message("node_type: expected less than ", num_types(), ", got ", node_type));
  return *types_[node_type];
}

void HgtBudgets::begin() {
  for (auto& type : types_) type->begin();
}

Tensor HgtBudgets::take(int node_type, const Tensor& ids) {
  check_index_vector(ids, "seeds");
  TypeBudgets& type = of_type(node_type);
  return dispatch_index(ids.dtype, "seeds", [&](auto tag) { return type.take(ids.as<decltype(tag)>(), ids.numel()); });
}

void HgtBudgets::add(const std::vector<DrawnNeighbors>& drawn, ThreadPool& pool) {
  for (const DrawnNeighbors& each : drawn) {
    of_type(each.node_type);
    check_index_vector(each.neighbors, "neighbors");
    check_int64_vector(each.counts, each.counts.numel(), "counts");
    int64_t left = each.neighbors.numel();
    for (int64_t i = 0; i < each.counts.numel(); ++i) {
      const int64_t count = each.counts.as<int64_t>()[i];
      if (count < 0 || count > left)
        throw InvalidArgument(message("counts[", i, "]: expected 0 to ", left, ", got ", count));
      left -= count;
    }
    if (left != 0)
      throw InvalidArgument(
          message("counts: expected a sum of ", each.neighbors.numel(), ", got ", each.neighbors.numel() - left));
  }
  pool.parallel_for(num_types(), 1, [&](int64_t begin, int64_t end) {
    for (const DrawnNeighbors& each : drawn) {
      if (each.node_type < begin || each.node_type >= end) continue;
      dispatch_index(each.neighbors.dtype, "neighbors", [&](auto tag) {
        types_[each.node_type]->add(each.counts.as<int64_t>(), each.counts.numel(), each.neighbors.as<decltype(tag)>(),
                                    each.neighbors.numel());
      });
    }
  });
}

std::vector<Tensor> HgtBudgets::pick(const std::vector<int64_t>& counts, const std::vector<uint64_t>& keys,
                                     ThreadPool& pool) {
  if (static_cast<int64_t>(counts.size()) != num_types() || keys.size() != counts.size())
    throw InvalidArgument(message("counts, keys: expected one for each of ", num_types(), " types, got ", counts.size(),
                                  " and ", keys.size()));
  for (int64_t count : counts)
    if (count < 0) throw InvalidArgument(message("counts: expected 0 or more, got ", count));
  std::vector<Tensor> picked(counts.size());
  pool.parallel_for(num_types(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t type = begin; type < end; ++type) picked[type] = types_[type]->pick(counts[type], keys[type]);
  });
  return picked;
}

}  // namespace gld
