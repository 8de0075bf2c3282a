#include "ordering/zone_parts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/error.h"

namespace gld {
namespace {

constexpr int kPasses = 12;     // of refinement, at most
constexpr int kBisections = 6;  // tries of each bisection
constexpr size_t kFew = 24;     // zones that are bisected without merging pairs of them
constexpr double kNone = 1e-9;  // an excess that is a rounding error
// Of an excess of a whole share, in all edges. With both weights near their limits hardly any single move is allowed: a
// search that may leave them for a while finds exchanges of several zones.
constexpr double kExcessCosts[] = {10, 1, 0.3, 0.1};
constexpr int kRounds = 8;  // of disturbing the best partition, for each try
constexpr int64_t kMostZones = 8192;

struct Zones {
  size_t count, dims;
  std::vector<int64_t> edges;   // [count, count]
  std::vector<double> weights;  // [count, dims], shares of all zones' weight

  int64_t between(size_t a, size_t b) const { return edges[a * count + b]; }
};

Zones only(const Zones& all, const std::vector<size_t>& members) {
  Zones some{members.size(), all.dims, {}, {}};
  for (const size_t a : members) {
    for (const size_t b : members) some.edges.push_back(all.between(a, b));
    for (size_t d = 0; d < all.dims; ++d) some.weights.push_back(all.weights[a * all.dims + d]);
  }
  return some;
}

// How good a partition is: first the excess of weights, then the cut.
struct Quality {
  double excess = std::numeric_limits<double>::max();
  int64_t cut = 0;
  bool better_than(const Quality& other) const {
    if (std::abs(excess - other.excess) > kNone) return excess < other.excess;
    return cut < other.cut;
  }
};

// A partition of zones that is refined in place. `shares[p]`: of the weight of all these zones.
class Refinement {
 public:
  Refinement(const Zones& zones, const std::vector<double>& shares, double slack, std::vector<size_t> parts)
      : zones_(zones),
        num_parts_(shares.size()),
        parts_(std::move(parts)),
        limits_(num_parts_ * zones.dims),
        targets_(limits_),
        loads_(limits_.size(), 0),
        links_(zones.count * num_parts_, 0) {
    std::vector<double> totals(zones.dims, 0);
    for (size_t z = 0; z < zones.count; ++z)
      for (size_t d = 0; d < zones.dims; ++d) totals[d] += zones.weights[z * zones.dims + d];
    for (size_t p = 0; p < num_parts_; ++p)
      for (size_t d = 0; d < zones.dims; ++d) {
        targets_[p * zones.dims + d] = std::max(shares[p] * totals[d], 1e-12);
        limits_[p * zones.dims + d] = (1 + slack) * targets_[p * zones.dims + d];
      }
    for (size_t a = 0; a < zones.count; ++a) {
      for (size_t d = 0; d < zones.dims; ++d) loads_[parts_[a] * zones.dims + d] += zones.weights[a * zones.dims + d];
      for (size_t b = 0; b < zones.count; ++b)
        if (a != b) {
          links_[a * num_parts_ + parts_[b]] += zones.between(a, b);
          all_edges_ += zones.between(a, b);
          if (parts_[a] < parts_[b]) quality_.cut += zones.between(a, b);
        }
    }
    quality_.excess = 0;
    for (size_t p = 0; p < num_parts_; ++p) quality_.excess += excess(p, nullptr, 0);
  }

  void run(double excess_cost = kExcessCosts[0]) {
    excess_cost_ = excess_cost;
    for (int pass = 0; pass < kPasses && improve(); ++pass) {
    }
  }

  const Quality& quality() const { return quality_; }
  const std::vector<size_t>& parts() const { return parts_; }

 private:
  struct Move {
    size_t zone = 0, to = 0;
    double score = -std::numeric_limits<double>::max();
    bool found = false;
  };

  // By how much part p is too heavy when `zone_weights` come (sign 1) or go (-1), in shares.
  double excess(size_t p, const double* zone_weights, double sign) const {
    double sum = 0;
    for (size_t d = 0; d < zones_.dims; ++d) {
      const size_t i = p * zones_.dims + d;
      const double load = loads_[i] + (zone_weights != nullptr ? sign * zone_weights[d] : 0);
      sum += std::max(0.0, load - limits_[i]) / targets_[i];
    }
    return sum;
  }

  double excess_change(size_t zone, size_t to) const {
    const double* weights = zones_.weights.data() + zone * zones_.dims;
    const size_t from = parts_[zone];
    return excess(from, weights, -1) + excess(to, weights, 1) - excess(from, nullptr, 0) - excess(to, nullptr, 0);
  }

  int64_t gain(size_t zone, size_t to) const {
    return links_[zone * num_parts_ + to] - links_[zone * num_parts_ + parts_[zone]];
  }

  Move best_move(const std::vector<bool>& moved) const {
    Move best;
    const double cost = excess_cost_ * static_cast<double>(all_edges_ + 1);
    for (size_t zone = 0; zone < zones_.count; ++zone) {
      if (moved[zone]) continue;
      for (size_t to = 0; to < num_parts_; ++to) {
        if (to == parts_[zone]) continue;
        const double score = static_cast<double>(gain(zone, to)) - cost * excess_change(zone, to);
        if (score > best.score) best = {zone, to, score, true};
      }
    }
    return best;
  }

  void move(size_t zone, size_t to) {
    const size_t from = parts_[zone];
    quality_.excess += excess_change(zone, to);
    quality_.cut -= gain(zone, to);
    for (size_t d = 0; d < zones_.dims; ++d) {
      loads_[from * zones_.dims + d] -= zones_.weights[zone * zones_.dims + d];
      loads_[to * zones_.dims + d] += zones_.weights[zone * zones_.dims + d];
    }
    for (size_t other = 0; other < zones_.count; ++other) {
      if (other == zone) continue;
      links_[other * num_parts_ + from] -= zones_.between(other, zone);
      links_[other * num_parts_ + to] += zones_.between(other, zone);
    }
    parts_[zone] = to;
  }

  // Moves each zone once at most, worse moves too, and takes back what came after the best state; whether it is better.
  bool improve() {
    std::vector<bool> moved(zones_.count, false);
    std::vector<std::pair<size_t, size_t>> taken;  // zone, where it was
    Quality best = quality_;
    size_t num_kept = 0;
    const size_t patience = std::max<size_t>(32, zones_.count / 4);
    while (taken.size() < num_kept + patience) {
      const Move next = best_move(moved);
      if (!next.found) break;
      taken.emplace_back(next.zone, parts_[next.zone]);
      moved[next.zone] = true;
      move(next.zone, next.to);
      if (quality_.better_than(best)) best = quality_, num_kept = taken.size();
    }
    for (size_t i = taken.size(); i > num_kept; --i) move(taken[i - 1].first, taken[i - 1].second);
    return num_kept > 0;
  }

  const Zones& zones_;
  const size_t num_parts_;
  std::vector<size_t> parts_;
  std::vector<double> limits_, targets_, loads_;  // [num_parts, dims]
  std::vector<int64_t> links_;                    // [count, num_parts], edges of a zone to the zones of a part
  int64_t all_edges_ = 0;
  double excess_cost_ = kExcessCosts[0];
  Quality quality_;
};

// Moves some zones that are near each other, and of one part, to the part that they are near besides, or to any.
void move_region(const Zones& zones, size_t num_parts, std::mt19937_64& random, std::vector<size_t>& parts) {
  const size_t first = random() % zones.count, from = parts[first];
  std::vector<int64_t> links(num_parts, 0);
  for (size_t z = 0; z < zones.count; ++z)
    if (parts[z] != from) links[parts[z]] += zones.between(first, z);
  links[from] = -1;
  const bool is_near = random() % 3 != 0;
  const size_t near = static_cast<size_t>(std::max_element(links.begin(), links.end()) - links.begin());
  const size_t to = is_near ? near : random() % num_parts;
  const size_t size = 1 + random() % std::max<size_t>(2, zones.count / (2 * num_parts));
  std::vector<int64_t> joined(zones.count, 0);
  for (size_t next = first, i = 0; next < zones.count && i < size; ++i) {
    parts[next] = to;
    size_t best = zones.count;
    for (size_t z = 0; z < zones.count; ++z) {
      joined[z] += zones.between(z, next);
      if (to != from && parts[z] == from && (best == zones.count || joined[z] > joined[best])) best = z;
    }
    next = best;
  }
}

class Partition {
 public:
  Partition(const Zones& zones, int num_parts, double slack, uint64_t seed)
      : zones_(zones), num_parts_(static_cast<size_t>(num_parts)), slack_(slack), random_(seed) {
    bisection_slack_ = std::pow(1 + slack, 1 / std::ceil(std::max(1.0, std::log2(num_parts)))) - 1;
  }

  Refinement one() {
    std::vector<size_t> parts(zones_.count, 0), all(zones_.count);
    std::iota(all.begin(), all.end(), size_t{0});
    divide(all, 0, num_parts_, parts);
    const std::vector<double> shares(num_parts_, 1 / static_cast<double>(num_parts_));
    Refinement refined(zones_, shares, slack_, std::move(parts));
    refined.run();
    return refined;
  }

 private:
  void divide(const std::vector<size_t>& members, size_t first, size_t num_parts, std::vector<size_t>& parts) {
    if (num_parts == 1) {
      for (const size_t zone : members) parts[zone] = first;
      return;
    }
    const size_t left = num_parts / 2;
    const Zones zones = only(zones_, members);
    const double share = static_cast<double>(left) / static_cast<double>(num_parts);
    const std::vector<size_t> sides = bisect(zones, share);
    std::vector<size_t> halves[2];
    for (size_t i = 0; i < members.size(); ++i) halves[sides[i]].push_back(members[i]);
    divide(halves[0], first, left, parts);
    divide(halves[1], first + left, num_parts - left, parts);
  }

  std::vector<size_t> bisect(const Zones& zones, double share) {
    std::vector<size_t> best;
    Quality quality;
    for (int i = 0; i < kBisections; ++i) {
      Refinement refined(zones, {share, 1 - share}, bisection_slack_, first_sides(zones, share));
      refined.run();
      if (best.empty() || refined.quality().better_than(quality)) best = refined.parts(), quality = refined.quality();
    }
    return best;
  }

  // Sides of zones whose pairs have been bisected first, where there are many.
  std::vector<size_t> first_sides(const Zones& zones, double share) {
    if (zones.count <= kFew) return grow(zones, share);
    const std::vector<size_t> pair_of = match(zones);
    const Zones pairs = merged(zones, pair_of);
    if (pairs.count * 10 > zones.count * 9) return grow(zones, share);  // few zones have edges to others
    Refinement refined(pairs, {share, 1 - share}, bisection_slack_, first_sides(pairs, share));
    refined.run();
    std::vector<size_t> sides(zones.count);
    for (size_t z = 0; z < zones.count; ++z) sides[z] = refined.parts()[pair_of[z]];
    return sides;
  }

  // The number of the pair of each zone: in random order each takes the free one that it has most edges to.
  std::vector<size_t> match(const Zones& zones) {
    std::vector<size_t> turns(zones.count), pair_of(zones.count, zones.count);
    std::iota(turns.begin(), turns.end(), size_t{0});
    for (size_t i = zones.count; i > 1; --i) std::swap(turns[i - 1], turns[random_() % i]);
    size_t num_pairs = 0;
    for (const size_t z : turns) {
      if (pair_of[z] < zones.count) continue;
      size_t best = z;
      for (size_t other = 0; other < zones.count; ++other)
        if (other != z && pair_of[other] == zones.count && zones.between(z, other) > 0 &&
            (best == z || zones.between(z, other) > zones.between(z, best)))
          best = other;
      pair_of[z] = pair_of[best] = num_pairs++;
    }
    return pair_of;
  }

  static Zones merged(const Zones& zones, const std::vector<size_t>& pair_of) {
    const size_t count = *std::max_element(pair_of.begin(), pair_of.end()) + 1;
    Zones pairs{count, zones.dims, std::vector<int64_t>(count * count, 0), std::vector<double>(count * zones.dims, 0)};
    for (size_t a = 0; a < zones.count; ++a) {
      for (size_t b = 0; b < zones.count; ++b) pairs.edges[pair_of[a] * count + pair_of[b]] += zones.between(a, b);
      for (size_t d = 0; d < zones.dims; ++d)
        pairs.weights[pair_of[a] * zones.dims + d] += zones.weights[a * zones.dims + d];
    }
    return pairs;
  }

  // Side 0 grows from one zone by the zone that has most edges to it, until it has its share.
  std::vector<size_t> grow(const Zones& zones, double share) {
    std::vector<size_t> sides(zones.count, 1);
    std::vector<double> mean(zones.count, 0);
    double total = 0, grown = 0;
    for (size_t z = 0; z < zones.count; ++z) {
      for (size_t d = 0; d < zones.dims; ++d) mean[z] += zones.weights[z * zones.dims + d];
      total += mean[z];
    }
    std::vector<int64_t> links(zones.count, 0);
    for (size_t next = zones.count == 0 ? 0 : random_() % zones.count; next < zones.count && grown < share * total;) {
      sides[next] = 0;
      grown += mean[next];
      size_t best = zones.count;
      for (size_t z = 0; z < zones.count; ++z) {
        links[z] += zones.between(z, next);
        if (sides[z] == 1 && (best == zones.count || links[z] > links[best])) best = z;
      }
      next = best;
    }
    return sides;
  }

  const Zones& zones_;
  const size_t num_parts_;
  const double slack_;
  double bisection_slack_;
  std::mt19937_64 random_;
};

Zones read_zones(const Tensor& edges, const Tensor& weights) {
  const bool is_square = edges.shape.size() == 2 && edges.shape[0] == edges.shape[1] && edges.dtype == kInt64;
  if (!is_square || edges.shape[0] < 1 || edges.shape[0] > kMostZones)
    throw InvalidArgument(message("edges: expected int64 [num_zones, num_zones] of 1 to ", kMostZones, " zones"));
  if (weights.shape.size() != 2 || weights.shape[0] != edges.shape[0] || weights.dtype != kInt64)
    throw InvalidArgument(message("weights: expected int64 [", edges.shape[0], ", num_constraints]"));
  Zones zones{static_cast<size_t>(edges.shape[0]), static_cast<size_t>(weights.shape[1]), {}, {}};
  zones.edges.assign(edges.as<int64_t>(), edges.as<int64_t>() + edges.numel());
  zones.weights.resize(zones.count * zones.dims);
  for (size_t d = 0; d < zones.dims; ++d) {
    double total = 0;
    for (size_t z = 0; z < zones.count; ++z) total += static_cast<double>(weights.as<int64_t>()[z * zones.dims + d]);
    for (size_t z = 0; z < zones.count && total > 0; ++z)
      zones.weights[z * zones.dims + d] = static_cast<double>(weights.as<int64_t>()[z * zones.dims + d]) / total;
  }
  return zones;
}

}  // namespace

Tensor zone_parts(const Tensor& edges, const Tensor& weights, int num_parts, double slack, int num_tries,
                  uint64_t seed) {
  const Zones zones = read_zones(edges, weights);
  if (num_parts < 1 || static_cast<size_t>(num_parts) > zones.count)
    throw InvalidArgument(message("num_parts: expected 1 to ", zones.count, ", the number of zones, got ", num_parts));
  std::vector<size_t> best;
  Quality quality;
  const auto keep = [&](const Refinement& found) {
    if (best.empty() || found.quality().better_than(quality)) best = found.parts(), quality = found.quality();
  };
  for (int i = 0; i < std::max(1, num_tries); ++i)
    keep(Partition(zones, num_parts, slack, seed + static_cast<uint64_t>(i)).one());
  const std::vector<double> shares(static_cast<size_t>(num_parts), 1.0 / num_parts);
  std::mt19937_64 random(seed);
  for (int round = 0; num_parts > 1 && round < kRounds * num_tries; ++round) {
    std::vector<size_t> parts = best;
    for (uint64_t regions = 1 + random() % 3; regions > 0; --regions) move_region(zones, shares.size(), random, parts);
    Refinement found(zones, shares, slack, std::move(parts));
    found.run(kExcessCosts[round % static_cast<int>(std::size(kExcessCosts))]);
    found.run();
    keep(found);
  }
  Tensor owners = empty({static_cast<int64_t>(zones.count)}, kInt64);
  std::copy(best.begin(), best.end(), owners.as<int64_t>());
  return owners;
}

}  // namespace gld
