#include "sampling/device_batch.h"

#include <utility>

#include "common/cuda/host_executor.h"
#include "sampling/cuda/launch_batch.h"

namespace gld {
namespace {

void check_graph(const Csr& csr, const EdgeTypeShape& edges, const BatchShape& shape) {
  const int64_t rows = shape.num_nodes[edges.spec.seed_type], cols = shape.num_nodes[edges.spec.neighbor_type];
  if (csr.num_rows() != rows || csr.num_cols != cols || csr.num_edges() != edges.num_edges)
    throw InvalidArgument(message("graphs: expected ", rows, " rows, ", cols, " columns and ", edges.num_edges,
                                  " edges, got ", csr.num_rows(), ", ", csr.num_cols, " and ", csr.num_edges()));
}

// The seeds of a batch as asked for; gives how many.
int64_t check_seeds(const BatchInput& input, const BatchShape& shape) {
  if (input.seeds.size() != shape.seeds.size())
    throw InvalidArgument(message("seeds: expected ", shape.seeds.size(), " lists, got ", input.seeds.size()));
  int64_t num_seeds = 0;
  for (size_t list = 0; list < input.seeds.size(); ++list) {
    check_index_vector(input.seeds[list], "seeds");
    if (input.seeds[list].shape[0] != shape.seeds[list].count)
      throw InvalidArgument(
          message("seeds[", list, "]: expected ", shape.seeds[list].count, " ids, got ", input.seeds[list].shape[0]));
    num_seeds += shape.seeds[list].count;
  }
  return num_seeds;
}

// The same where they are those of a schedule.
int64_t check_schedule(const BatchInput& input) {
  if (!input.seeds.empty() || input.times.defined())
    throw InvalidArgument("seeds, times: expected none: those of a padded batch come from its schedule");
  if (!input.schedule.nodes.defined() || !input.failure.defined())
    throw InvalidArgument("schedule, failure: expected both for a padded batch");
  check_index_vector(input.schedule.nodes, "schedule");
  check_int64_vector(input.failure, 3, "failure");
  return input.schedule.nodes.shape[0];
}

}  // namespace

DeviceBatchPlan::DeviceBatchPlan(BatchShape shape) : shape_(std::move(shape)), layout_(lay_out_batch(shape_)) {}

void DeviceBatchPlan::check(const BatchInput& input) const {
  const size_t num_types = shape_.edge_types.size();
  if (input.graphs.size() != num_types || input.how.size() != num_types)
    throw InvalidArgument(message("graphs, how: expected one of each for ", num_types, " edge types, got ",
                                  input.graphs.size(), " and ", input.how.size()));
  const int64_t num_seeds = shape_.padding ? check_schedule(input) : check_seeds(input, shape_);
  check_int64_vector(input.counter, 3, "counter");
  const Tensor& times = shape_.padding ? input.schedule.times : input.times;
  if (times.defined()) {
    if (!shape_.disjoint) throw InvalidArgument("times: expected a disjoint batch, one tree for the time of each seed");
    check_int64_vector(times, num_seeds, "times");
  }
  for (size_t type = 0; type < num_types; ++type) {
    check_graph(input.graphs[type], shape_.edge_types[type], shape_);
    if (input.how[type].replace != shape_.edge_types[type].replace)
      throw InvalidArgument("how: expected draws with replacement where the plan has them");
    for (const auto& hop : shape_.fanouts)
      if (hop[type] != 0)
        check_draw(input.graphs[type], {hop[type], input.how[type], 0, shape_.with_edge_ids}, times.defined());
  }
}

void DeviceBatchPlan::launch(const BatchInput& input, BatchMemory memory, CudaStream stream) const {
  check(input);
  if (stream.device == kHost) {
    HostExecutor executor;
    return BatchChain<HostExecutor>(shape_, layout_, input, memory, executor).run();
  }
  launch_batch(shape_, layout_, input, memory, stream);
}

}  // namespace gld
