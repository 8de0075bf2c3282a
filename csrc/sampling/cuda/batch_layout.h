// Where everything of one batch lies in two blocks of device memory, one for its result and one that is scratch memory
// of the next batch when it is done, and the steps that fill them: worked out on the host from bounds, before anything
// is sampled.
//
// How many nodes and edges there are is known to the device alone, as counters. Each step reads counters that earlier
// steps wrote and writes new ones, so that steps follow each other on a stream with nobody waiting for a number.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sampling/batch_builder.h"

namespace gld {

struct EdgeTypeShape {
  EdgeTypeSpec spec;
  int64_t num_edges, max_degree;  // of the graph
  bool replace;
};

struct SeedShape {
  int node_type;
  int64_t count;
  bool unique;
};

// Of batches of fixed shapes: how many entries the arrays of each type have, -1: as many as there may ever be. Real
// nodes and edges come first, the others are padding, among them one node of each type at least. A batch that does not
// fit is all padding, and says so.
struct Padding {
  std::vector<int64_t> max_nodes, max_edges;  // per type
};

// What the size of a batch depends on.
struct BatchShape {
  std::vector<int64_t> num_nodes;  // per node type, of the graph
  std::vector<EdgeTypeShape> edge_types;
  std::vector<SeedShape> seeds;
  std::vector<std::vector<int64_t>> fanouts;  // [hop][edge type]; -1: all, 0: none
  bool with_edge_ids = false, disjoint = false;
  std::optional<Padding> padding;  // with one list of seeds, of at most `count`
};

// Offsets are in bytes from the start of the block of results, or of scratch memory where they say so. Counters are
// numbered; counter 0 is always 0.
struct BatchLayout {
  struct Nodes {
    int64_t capacity = 0, size = 0;  // real nodes at most; entries of the arrays
    size_t ids = 0, trees = 0;       // int64 [size]; trees in disjoint batches
    size_t mask = 0;                 // bool [size], in padded batches: whether a node is real
    size_t slots = 0;                // OrderedTable::Slot [num_slots], in scratch memory
    uint64_t num_slots = 0;
    std::vector<int> counters;  // [hops + 1]: nodes of the type after the seeds, and after each hop
  };
  struct Edges {
    int64_t capacity = 0;
    size_t rows = 0;            // int64 [2, number of edges], in padded batches [2, capacity]: rows, then columns
    size_t cols = 0;            // int64 [capacity], in scratch memory until PackEdges; in padded batches behind rows
    size_t edge_ids = 0;        // int64 [capacity], where asked for
    size_t mask = 0;            // bool [capacity], in padded batches: whether an edge is real
    std::vector<int> counters;  // [hops + 1]: edges of the type before the first hop (none), and after each
  };
  struct SeedStep {
    int node_type;
    int64_t count, first_tree;
    bool unique;
    int num_seeds;     // counter
    size_t local_ids;  // int64 [count]
    size_t slots;      // int64 [count], in scratch memory: of the table, per arrival
  };
  struct HopStep {
    int hop, edge_type;
    int64_t fanout;
    int frontier_begin, frontier_end, edges_before, edges_after;  // counters
    int64_t max_frontier, max_edges;
    int64_t number;  // of its first arrival, among those of its round
    size_t candidates = 0,
           offsets = 0;  // in scratch memory: per node of the frontier its candidates and (one more) its
    size_t slots = 0;    // first edge, per arrival its slot of the table
    size_t sums = 0;     // TileSums of the frontier
    // Where the graph has long rows: LongRows, in scratch memory.
    bool has_long_rows = false;
    size_t num_long_rows = 0, long_rows = 0;
  };
  // Nodes of one type that are added in one scan: arrivals of these steps.
  struct NewNodes {
    int node_type;
    int before, after;  // counters
    int64_t max_count = 0;
    std::vector<size_t> steps;
    size_t sums = 0;  // TileSums, in scratch memory
  };
  // Steps that run together, launch by launch: lists of seeds, or edge types of one hop, at most kMaxTogether.
  struct Round {
    std::vector<size_t> steps;
    std::vector<NewNodes> new_nodes;
  };
  // Of padded batches, whose seeds are read from the schedule.
  struct Seeds {
    int64_t count = 0;
    size_t positions = 0, times = 0;  // int64 [count]: in the list of input nodes; of the trees
    size_t mask = 0;                  // bool [count]
    size_t ids = 0;                   // int64 [count], in scratch memory
  };

  std::vector<Nodes> nodes;
  std::vector<Edges> edges;
  std::vector<SeedStep> seed_steps;
  std::vector<Round> seed_rounds;
  Seeds seeds;
  std::vector<HopStep> hop_steps;  // those that may find an edge, in order
  std::vector<Round> hop_rounds;
  int num_counters = 1;
  size_t counters = 0;  // int64 [num_counters]
  // uint64, behind them: position of the first seed outside the graph, or bad_row_of(), bad_neighbor_of() of a graph
  // that is damaged, or overflow_of() of what did not fit; all bits set where nothing went wrong.
  size_t status = 0;
  // Tables, TileSums of all scans and numbers of long rows, which begin with all bits set, behind each other in scratch
  // memory.
  size_t filled = 0, num_filled_bytes = 0;
  size_t num_bytes = 0, num_scratch_bytes = 0;
};

// The status of a batch that reaches a row of a type whose offsets are damaged, or a neighbor that is no node. Above
// the position of any seed.
constexpr uint64_t bad_row_of(size_t edge_type) { return (uint64_t{1} << 60) + edge_type; }
constexpr uint64_t bad_neighbor_of(size_t edge_type) { return (uint64_t{1} << 61) + edge_type; }

// The status of a batch that has more than fit: of nodes of a type, or of edges (types are counted on behind those of
// nodes). Above the others.
constexpr uint64_t overflow_of(size_t type) { return (uint64_t{1} << 62) + type; }

constexpr int64_t kMaxBatchEdges = int64_t{1} << 36;  // along one edge type; beyond it a batch is a mistake

// Bounds: a node has max_degree neighbors at most; a batch (or a tree of it) finds each node of the graph once, and
// each edge of nodes that differ once where none is drawn twice. Throws InvalidArgument for types or fan-outs that make
// no sense, where the bounds are above kMaxBatchEdges, and for padding that has no room for the seeds.
BatchLayout lay_out_batch(const BatchShape& shape);

}  // namespace gld
