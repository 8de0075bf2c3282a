// Functors of one kind that run in one launch: those of the edge types of a hop, say.
#pragma once
#include <cstdint>
#include <vector>

namespace gld {

constexpr int kMaxTogether = 8;

// A functor, and a bound of its count() or num_groups(), for the size of the launch.
template <typename Body>
struct Bounded {
  int64_t max_count;
  Body body;
};

// At most kMaxTogether; no functor may need what another one of the list writes.
template <typename Body>
using LaunchList = std::vector<Bounded<Body>>;

}  // namespace gld
