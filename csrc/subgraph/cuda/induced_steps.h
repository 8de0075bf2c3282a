// The kernels that find the edges among the nodes of a batch, as functors for host and device (see
// sampling/cuda/batch_steps.h).
#pragma once
#include <cstdint>

#include "common/atomics.h"
#include "common/cuda/group_scan.h"
#include "common/host_device.h"
#include "sampling/candidates.h"
#include "sampling/cuda/ordered_table.h"

namespace gld {

// The nodes of one type in a batch, on their way into a table from ids to positions. Of nodes that repeat, the first
// stands for all.
struct EnterMembers {
  OrderedTable table;
  IdReader ids;
  int64_t num_ids, num_nodes;  // num_nodes: of the graph
  uint64_t* status;            // lowered to the position of a node that is outside the graph

  GLD_HOST_DEVICE int64_t count() const { return num_ids; }
  GLD_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t id = ids(i);
    if (id >= 0 && id < num_nodes)
      table.arrive(id, i);
    else
      atomic_lower(status, static_cast<uint64_t>(i));
  }
};

// The rows of the nodes of one type, in which those of another are looked for.
struct SearchedRows {
  IdReader ids;
  int64_t num_ids;
  RowOffsets row_at;
  int64_t num_rows;
  IdReader neighbor_at;
  OrderedTable members;

  // Positions in the graph's arrays; none of a node that is outside the graph, or whose offsets are damaged:
  // DeviceTopology, which reads them all, has refused such.
  GLD_HOST_DEVICE ScanRange row(int64_t i) const {
    const int64_t id = ids(i);
    RowSpan span;
    if (id < 0 || id >= num_rows || !row_at.find(id, &span)) return {0, 0};
    return {span.begin, span.end};
  }
  // The place among the members of the neighbor that stands there, or -1.
  GLD_HOST_DEVICE int64_t find(int64_t position) const { return members.first_arrival(neighbor_at(position)); }
  GLD_HOST_DEVICE int64_t is_found(int64_t position) const { return find(position) >= 0 ? 1 : 0; }
};

// A group per node, so that long rows are not the work of one thread.
struct CountMatches {
  SearchedRows rows;
  int64_t* counts;  // [num_ids]

  GLD_HOST_DEVICE int64_t num_groups() const { return rows.num_ids; }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t i) const {
    const int64_t found = sum_range(group, rows.row(i), [this](int64_t at) { return rows.is_found(at); });
    group.each([&](int thread) {
      if (thread == 0) counts[i] = found;
    });
  }
};

// A group per node: its edges, in the order of its row.
struct WriteMatches {
  SearchedRows rows;
  const int64_t *counts, *offsets;
  IdReader edge_id_at;
  int64_t *cols, *edge_ids;  // edge_ids may be null

  GLD_HOST_DEVICE int64_t num_groups() const { return rows.num_ids; }
  template <typename Group>
  GLD_HOST_DEVICE void operator()(Group& group, int64_t i) const {
    if (counts[i] == 0) return;
    const auto is_found = [this](int64_t at) { return rows.is_found(at); };
    const auto write = [this](int64_t at, int64_t is_edge, int64_t edge) {
      if (is_edge == 0) return;
      cols[edge] = rows.find(at);
      if (edge_ids != nullptr) edge_ids[edge] = edge_id_at(at);
    };
    scan_range(group, rows.row(i), offsets[i], is_found, write);
  }
};

}  // namespace gld
