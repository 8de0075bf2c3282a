// The list of methods by which neighbors are drawn, for host and device. docs/sampling.md says how to add one.
//
// A method is a struct of static functions with its traits. They say which positions of a row are picked, relative to
// the candidates' start, as a pure function of the node's stream. What is here is all that threads of kernels run by
// themselves; cuda/long_rows.h has the ways of a group of threads to the same picks from a long row, and the CPU has
// faster ways to those of some methods (cpu/pick_block.h).
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "common/host_device.h"
#include "graph/csr.h"
#include "sampling/candidates.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/pickers.h"
#include "sampling/weighted_picks.h"

namespace gld {

struct MethodTraits {
  const char* name;    // by which Python asks for it
  const char* called;  // in errors
  bool reads_weights;  // the graph has weights and weight_sums
  bool may_replace;    // has pick_one(), for draws with replacement
};

// What methods read of the edges.
struct EdgeColumns {
  IdReader neighbor_at;
  const double* sums;  // there for methods that read weights, as are the next two; see graph/weights.h
  WeightReader weight_at;
  const int32_t* positive_counts;  // null: all weights are positive

  explicit EdgeColumns(const Csr& csr)
      : neighbor_at(csr.indices),
        sums(csr.weight_sums.as<double>()),
        weight_at(csr.weights),
        positive_counts(csr.positive_counts.as<int32_t>()) {}
};

namespace methods {

// What most methods have in common: every candidate may be drawn, and a pick needs 64 bits of scratch memory.
struct OfAllCandidates {
  using Scratch = uint64_t;

  GLD_HOST_DEVICE static int64_t num_drawable(const EdgeColumns&, Candidates from) { return from.count; }
  // The position of the i-th candidate that may be drawn.
  GLD_HOST_DEVICE static int64_t drawable(const EdgeColumns&, Candidates, int64_t i) { return i; }
};

struct Uniform : OfAllCandidates {
  static constexpr MethodTraits kTraits = {"uniform", "uniform sampling", false, true};

  // The pick-th of picks with replacement. There are candidates.
  GLD_HOST_DEVICE static int64_t pick_one(const EdgeColumns&, const PickStream& stream, Candidates from, int64_t pick) {
    return stream.below(pick, from.count);
  }
  // `fanout` positions without replacement, fewer than may be drawn. `scratch` [fanout].
  GLD_HOST_DEVICE static void pick_some(const EdgeColumns&, const PickStream& stream, Candidates from, int64_t fanout,
                                        int64_t* positions, Scratch*) {
    pick_without_replacement(stream, from.count, fanout, positions);
  }
};

// By edge weight. Edges of weight 0 are never drawn, not even by fan-out -1.
struct Weighted {
  static constexpr MethodTraits kTraits = {"weighted", "weighted sampling", true, true};
  using Scratch = uint64_t;

  GLD_HOST_DEVICE static WeightedRow row(const EdgeColumns& edges, Candidates from) {
    return {edges.sums + from.start, edges.weight_at, from.start, from.count};
  }
  GLD_HOST_DEVICE static int64_t num_drawable(const EdgeColumns& edges, Candidates from) {
    return num_positive(edges.positive_counts, from);
  }
  GLD_HOST_DEVICE static int64_t drawable(const EdgeColumns& edges, Candidates from, int64_t i) {
    if (edges.positive_counts == nullptr) return i;
    return count_up_to(edges.positive_counts + from.start, from.count, static_cast<int32_t>(i));
  }
  GLD_HOST_DEVICE static int64_t pick_one(const EdgeColumns& edges, const PickStream& stream, Candidates from,
                                          int64_t pick) {
    return pick_by_weight(stream, row(edges, from), pick);
  }
  GLD_HOST_DEVICE static void pick_some(const EdgeColumns& edges, const PickStream& stream, Candidates from,
                                        int64_t fanout, int64_t* positions, Scratch* clocks) {
    pick_weighted_without_replacement(stream, row(edges, from), fanout, positions, clocks,
                                      ScanOfPicks<int64_t>{positions}, RecordNothing{});
  }
};

// Layer-neighbor: one random number per neighbor, shared by all nodes of the frontier (of their tree).
struct Labor : OfAllCandidates {
  static constexpr MethodTraits kTraits = {"labor", "LABOR", false, false};

  GLD_HOST_DEVICE static void pick_some(const EdgeColumns& edges, const PickStream& stream, Candidates from,
                                        int64_t fanout, int64_t* positions, Scratch* keys) {
    pick_labor(
        stream.tree_key, stream, [&edges, from](int64_t i) { return edges.neighbor_at(from.start + i); }, from.count,
        fanout, positions, keys);
  }
};

// The `fanout` edges of largest weight, in row order; of equal weights those that come first in the row.
struct TopK : OfAllCandidates {
  static constexpr MethodTraits kTraits = {"topk", "top-k", true, false};
  using Scratch = double;

  GLD_HOST_DEVICE static void pick_some(const EdgeColumns& edges, const PickStream&, Candidates from, int64_t fanout,
                                        int64_t* positions, Scratch* keys) {
    SmallestKeys<double, int64_t> heaviest(keys, positions, fanout);
    for (int64_t i = 0; i < from.count; ++i) heaviest.offer(-edges.weight_at(from.start + i), i);
    sort_positions(positions, fanout, keys);
  }
};

}  // namespace methods

template <typename... Each>
struct MethodList {};

template <typename Head, typename... Rest>
struct MethodList<Head, Rest...> {
  static constexpr std::array<MethodTraits, 1 + sizeof...(Rest)> kTraits = {Head::kTraits, Rest::kTraits...};

  template <typename M>
  static constexpr Method number_of() {
    if constexpr (std::is_same_v<M, Head>)
      return Method{0};
    else
      return static_cast<Method>(1 + static_cast<int>(MethodList<Rest...>::template number_of<M>()));
  }

  // Calls body(method) with the number-th method of the list, and gives what it gives.
  template <typename Body>
  GLD_HOST_DEVICE static decltype(auto) call(int number, const Body& body) {
    if constexpr (sizeof...(Rest) > 0)
      if (number > 0) return MethodList<Rest...>::call(number - 1, body);
    return body(Head{});
  }
};

// Every method. A Method is a number in this list.
using Methods = MethodList<methods::Uniform, methods::Weighted, methods::Labor, methods::TopK>;

template <typename Body>
GLD_HOST_DEVICE inline decltype(auto) with_method(Method method, const Body& body) {
  return Methods::call(static_cast<int>(method), body);
}

// The number of a method.
template <typename M>
inline constexpr Method method_of = Methods::number_of<M>();
static_assert(method_of<methods::Uniform> == Method::kUniform);

inline const MethodTraits& traits_of(Method method) { return Methods::kTraits[static_cast<size_t>(method)]; }

// Throws InvalidArgument where no method has the name.
Method method_named(const char* name);

}  // namespace gld
