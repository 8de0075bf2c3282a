// Uniform picks of many nodes at once, one node in each lane of a vector: the arithmetic of a whole block costs about
// as much as that of a few nodes one by one. Each lane's picks are those of pickers.h.
#pragma once
#include <cstdint>

namespace gld {

constexpr int64_t kBlockLanes = 64;

// The streams' states (NodeStream::state) of `count` nodes under `key`, or under the key of each node's tree where
// `trees` is not null.
void stream_states(uint64_t key, const int64_t* ids, const int64_t* trees, int64_t count, uint64_t* states);

// picks[i * kBlockLanes + lane] is the i-th of `fanout` picks of a lane, without replacement (pick_without_replacement)
// or with it (pick_with_replacement). states, degrees [kBlockLanes]; without replacement, lanes of degree <= fanout
// give nothing of use. Fan-outs from 1; time grows with their square without replacement.
void pick_uniform_block(const uint64_t* states, const uint32_t* degrees, int64_t fanout, bool replace, uint32_t* picks);

}  // namespace gld
