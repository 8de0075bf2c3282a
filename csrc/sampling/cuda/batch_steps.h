// The kernels of one batch, as functors for host and device: operator()(i) is what thread i of a launch does, count()
// how many there are. Scans are those of common/cuda/group_scan.h. Counters are pointers into the batch's memory
// (batch_layout.h).
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/cuda/launch_list.h"
#include "common/host_device.h"
#include "common/rng.h"
#include "sampling/candidates.h"
#include "sampling/cuda/node_picker.h"
#include "sampling/cuda/ordered_table.h"

namespace gld {

struct SetWord {
  uint64_t* word;
  uint64_t number;

  GLD_HOST_DEVICE int64_t count() const { return 1; }
  GLD_HOST_DEVICE void operator()(int64_t) const { *word = number; }
};

// How many more nodes or edges of a type fit. What does not is not added, and the status says so: nothing is sampled
// from such a batch.
struct Room {
  int64_t capacity;
  uint64_t* status;
  uint64_t overflow;  // the status of a batch with more

  GLD_HOST_DEVICE int64_t admit(int64_t before, int64_t added) const {
    if (added <= capacity - before) return added;
    atomic_lower(status, overflow);
    return 0;
  }
};

// Nodes on their way into the batch: the seeds of one list, or the neighbors that one hop found along one edge type, in
// order. Their ids are entries [*first, *end) of an array, global until local ids take their place.
struct Arrivals {
  OrderedTable table;
  int64_t number;  // of the first: those that enter the table together are told apart, and are in the order of numbers
  int64_t* slots;  // per arrival, its key's in the table
  int64_t* ids;
  const int64_t *first, *end;  // counters
  int64_t num_nodes;           // of the graph
  bool disjoint;               // then nodes are told apart by tree, too
  const int64_t* cols;         // per entry, the node of the frontier it was found from; null: seeds
  const int64_t* col_trees;    // per node of the frontier's type, its tree
  int64_t first_tree;          // of seeds
  bool keep_all;               // all are added to the batch, as seeds are, and not only those that came first

  GLD_HOST_DEVICE int64_t count() const { return *end - *first; }
  GLD_HOST_DEVICE int64_t& id(int64_t i) const { return ids[*first + i]; }
  GLD_HOST_DEVICE int64_t tree(int64_t i) const {
    return cols == nullptr ? first_tree + i : col_trees[cols[*first + i]];
  }
  GLD_HOST_DEVICE void enter(int64_t i, int64_t global_id) const {
    id(i) = global_id;
    slots[i] = table.arrive(disjoint ? tree(i) * num_nodes + global_id : global_id, number + i);
  }
  GLD_HOST_DEVICE bool came_first(int64_t i) const { return table.came_first(slots[i], number + i); }
  GLD_HOST_DEVICE bool is_added(int64_t i) const { return keep_all || came_first(i); }
};

struct EnterSeeds {
  Arrivals arrivals;
  IdReader seeds;
  uint64_t* status;  // lowered to the position of a seed that is outside the graph, `first_position` on

  GLD_HOST_DEVICE int64_t count() const { return arrivals.count(); }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t id = seeds(i);
    const bool is_known = id >= 0 && id < arrivals.num_nodes;
    if (!is_known) atomic_lower(status, static_cast<uint64_t>(arrivals.first_tree + i));
    arrivals.enter(i, is_known ? id : 0);
  }
};

// Scan: adds arrivals of one node type to the nodes of the batch, in their order, and says so in the table. Those that
// are kept whatever came before take their local ids at once.
struct AddNewNodes {
  Arrivals sources[kMaxTogether];
  int num_sources;
  int64_t *ids, *trees;  // of the batch's nodes; trees in disjoint batches
  const int64_t* before;
  int64_t* after;  // counters
  Room room;

  GLD_HOST_DEVICE int64_t count() const {
    int64_t sum = 0;
    for (int source = 0; source < num_sources; ++source) sum += sources[source].count();
    return sum;
  }
  GLD_HOST_DEVICE void measure(int64_t) const {}
  GLD_HOST_DEVICE int64_t value(int64_t i) const {
    const Arrivals& arrivals = source_of(&i);
    return arrivals.is_added(i) ? 1 : 0;
  }
  GLD_HOST_DEVICE void store(int64_t i, int64_t is_new, int64_t rank) const {
    const int64_t local = *before + rank;
    if (is_new == 0 || local >= room.capacity) return;
    const Arrivals& arrivals = source_of(&i);
    ids[local] = arrivals.id(i);
    if (arrivals.disjoint) trees[local] = arrivals.tree(i);
    // What is kept whatever came before is all that is new without having come first.
    if (!arrivals.keep_all || arrivals.came_first(i)) arrivals.table.set_local_id(arrivals.slots[i], local);
    if (arrivals.keep_all) arrivals.id(i) = local;
  }
  GLD_HOST_DEVICE void finish(int64_t total) const { *after = *before + room.admit(*before, total); }

 private:
  // Where the i-th arrival of all comes from; *i becomes its place there.
  GLD_HOST_DEVICE const Arrivals& source_of(int64_t* i) const {
    int source = 0;
    for (int64_t count; source < num_sources - 1 && *i >= (count = sources[source].count()); ++source) *i -= count;
    return sources[source];
  }
};

struct TakeLocalIds {
  Arrivals arrivals;

  GLD_HOST_DEVICE int64_t count() const { return arrivals.count(); }
  GLD_HOST_DEVICE void operator()(int64_t i) const { arrivals.id(i) = arrivals.table.local_id(arrivals.slots[i]); }
};

// The nodes whose neighbors one step samples: [*begin, *end) of the batch's nodes of their type.
struct Frontier {
  const int64_t *ids, *trees;  // trees in disjoint batches, else null
  const int64_t* tree_times;   // per tree; null where seeds have no times
  const int64_t *begin, *end;  // counters
  const uint64_t* status;      // nothing is sampled where something went wrong

  GLD_HOST_DEVICE int64_t size() const { return *end - *begin; }
  GLD_HOST_DEVICE bool is_sound() const { return atomic_read(status) == OrderedTable::kEmpty; }
  GLD_HOST_DEVICE int64_t node(int64_t i) const { return *begin + i; }
  GLD_HOST_DEVICE int64_t time(int64_t i) const { return tree_times == nullptr ? 0 : tree_times[trees[node(i)]]; }
};

// Where the random numbers of one hop along one edge type come from: the batch's (seed, epoch, index) lie on the
// device, so that a captured batch can be replayed as another.
struct DrawCounter {
  const int64_t* batch;  // [3]
  int64_t hop, edge_type;

  GLD_HOST_DEVICE uint64_t key() const { return draw_key(batch[0], batch[1], batch[2], hop, edge_type); }
};

// What the kernels of one step share: per node of the frontier its candidates, and its first edge in the step.
struct HopPicks {
  Frontier frontier;
  NodePicker picker;
  DrawCounter draw;
  Candidates* candidates;  // [frontier]
  int64_t* offsets;        // [frontier + 1]; before the scan the number of picks

  GLD_HOST_DEVICE PickStream stream(int64_t i) const {
    const int64_t node = frontier.node(i);
    return stream_of(draw.key(), frontier.ids[node], frontier.trees, node);
  }
};

// Scan: each node's candidates, and its number of picks, which becomes an offset.
struct CountPicks {
  HopPicks hop;
  const int64_t* before;
  int64_t* after;  // counters
  Room room;
  uint64_t* status;
  uint64_t bad_row;  // the status of a batch that reaches a row whose offsets are damaged

  GLD_HOST_DEVICE int64_t count() const { return hop.frontier.size(); }
  // Nodes of a batch in which something went wrong have none: what follows holds also where that is found meanwhile.
  GLD_HOST_DEVICE void measure(int64_t i) const {
    const int64_t id = hop.frontier.ids[hop.frontier.node(i)];
    Candidates from{0, 0};
    if (hop.frontier.is_sound() && !hop.picker.candidates(id, hop.frontier.time(i), &from))
      atomic_lower(status, bad_row);
    hop.candidates[i] = from;
    hop.offsets[i] = hop.picker.num_picks(from);
  }
  GLD_HOST_DEVICE int64_t value(int64_t i) const { return hop.offsets[i]; }
  GLD_HOST_DEVICE void store(int64_t i, int64_t, int64_t sum_before) const { hop.offsets[i] = sum_before; }
  GLD_HOST_DEVICE void finish(int64_t total) const {
    hop.offsets[count()] = total;
    *after = *before + room.admit(*before, total);
  }
};

// Picks that depend on each other, a thread per node: positions in place of the edges' neighbors.
struct PickTogether {
  HopPicks hop;
  Arrivals arrivals;   // whose slots are scratch memory until EnterNeighbors
  LongRows long_rows;  // takes those of PickFromLongRows

  GLD_HOST_DEVICE int64_t count() const { return arrivals.count() > 0 ? hop.frontier.size() : 0; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const Candidates from = hop.candidates[i];
    if (!hop.picker.is_drawn_together(from)) return;
    const int64_t first = hop.offsets[i];
    if (!hop.picker.pick_together(hop.stream(i), from, &arrivals.id(first), arrivals.slots + first,
                                  long_rows.is_kept()))
      long_rows.add(i);
  }
};

// The same where a long row is to be read, a group per node.
struct PickFromLongRows {
  HopPicks hop;
  Arrivals arrivals;
  LongRows long_rows;

  GLD_HOST_DEVICE int64_t num_groups() const { return long_rows.count(); }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t number) const {
    const int64_t i = long_rows.places[number], first = hop.offsets[i];
    hop.picker.finish_long(group, hop.stream(i), hop.candidates[i], &arrivals.id(first), arrivals.slots + first);
  }
};

// A thread per edge: makes the picks that are left, and enters the neighbor that is found there.
struct EnterNeighbors {
  // Its threads wait for memory: with 48 registers in the place of 64, and one spilled at most, a multiprocessor has
  // room for five groups in the place of four; for six more would be.
  static constexpr int kRoomForGroups = 5;

  HopPicks hop;
  Arrivals arrivals;
  IdReader edge_id_at;
  int64_t *cols, *edge_ids;  // edge_ids may be null
  uint64_t* status;
  uint64_t bad_neighbor;  // the status of a batch that reaches an edge whose neighbor is no node

  GLD_HOST_DEVICE int64_t count() const { return arrivals.count(); }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    // The last node whose edges begin no later than this one: nodes without edges share an offset with the next.
    const int64_t seed = count_up_to(hop.offsets, hop.frontier.size(), i) - 1;
    const Candidates from = hop.candidates[seed];
    const int64_t pick = hop.picker.is_drawn_together(from)
                             ? arrivals.id(i)
                             : hop.picker.pick_one(hop.stream(seed), from, i - hop.offsets[seed]);
    const int64_t position = from.start + pick, edge = *arrivals.first + i;
    cols[edge] = hop.frontier.node(seed);
    if (edge_ids != nullptr) edge_ids[edge] = edge_id_at(position);
    const int64_t neighbor = hop.picker.edges.neighbor_at(position);
    const bool is_node = neighbor >= 0 && neighbor < arrivals.num_nodes;
    if (!is_node) atomic_lower(status, bad_neighbor);
    arrivals.enter(i, is_node ? neighbor : 0);
  }
};

// Columns of the edges go behind as many rows as there are.
struct PackEdges {
  int64_t* rows;
  const int64_t* cols;
  const int64_t* num_edges;  // counter

  GLD_HOST_DEVICE int64_t count() const { return *num_edges; }
  GLD_HOST_DEVICE void operator()(int64_t i) const { rows[*num_edges + i] = cols[i]; }
};

}  // namespace gld
