#include "subgraph/device_induced.h"

#include <utility>

#include "common/cuda/host_executor.h"
#include "subgraph/cuda/launch_induced.h"

namespace gld {
namespace {

InducedShape checked(InducedShape shape) {
  const size_t num_types = shape.num_nodes.size();
  if (shape.num_members.size() != num_types)
    throw InvalidArgument(message("num_members: expected one number for each of ", num_types, " node types, got ",
                                  shape.num_members.size()));
  for (const EdgeTypeSpec& spec : shape.edge_types)
    for (int type : {spec.seed_type, spec.neighbor_type})
      if (type < 0 || static_cast<size_t>(type) >= num_types)
        throw InvalidArgument(message("edge_types: node type ", type, " is outside [0, ", num_types, ")"));
  return shape;
}

void check_output(const InducedOutput& out) {
  check_vector(out.cols, kInt64, out.cols.numel(), "cols");
  if (out.edge_ids.defined()) check_vector(out.edge_ids, kInt64, out.cols.numel(), "edge_ids");
}

}  // namespace

DeviceInducedPlan::DeviceInducedPlan(InducedShape shape) : shape_(checked(std::move(shape))), layout_(shape_) {}

void DeviceInducedPlan::check(const InducedInput& input) const {
  if (input.graphs.size() != shape_.edge_types.size() || input.members.size() != shape_.num_nodes.size())
    throw InvalidArgument(message("graphs, members: expected ", shape_.edge_types.size(), " graphs and ",
                                  shape_.num_nodes.size(), " lists, got ", input.graphs.size(), " and ",
                                  input.members.size()));
  for (size_t type = 0; type < input.members.size(); ++type) {
    check_index_vector(input.members[type], "members");
    if (input.members[type].numel() != shape_.num_members[type])
      throw InvalidArgument(message("members[", type, "]: expected ", shape_.num_members[type], " ids, got ",
                                    input.members[type].numel()));
  }
  for (size_t type = 0; type < input.graphs.size(); ++type) {
    const auto [seed_type, neighbor_type] = shape_.edge_types[type];
    const Csr& csr = input.graphs[type];
    if (csr.num_rows() != shape_.num_nodes[seed_type] || csr.num_cols != shape_.num_nodes[neighbor_type])
      throw InvalidArgument(message("graphs[", type, "]: expected ", shape_.num_nodes[seed_type], " rows and ",
                                    shape_.num_nodes[neighbor_type], " columns, got ", csr.num_rows(), " and ",
                                    csr.num_cols));
  }
}

void DeviceInducedPlan::count(const InducedInput& input, BatchMemory memory, CudaStream stream) const {
  check(input);
  if (stream.device != kHost) return launch_induced_count(shape_, layout_, input, memory, stream);
  HostExecutor executor;
  InducedChain<HostExecutor>(shape_, layout_, input, memory, executor).count();
}

void DeviceInducedPlan::write(const InducedInput& input, BatchMemory memory, const std::vector<InducedOutput>& out,
                              CudaStream stream) const {
  check(input);
  if (out.size() != shape_.edge_types.size())
    throw InvalidArgument(message("out: expected arrays for ", shape_.edge_types.size(), " types, got ", out.size()));
  for (const InducedOutput& edges : out) check_output(edges);
  if (stream.device != kHost) return launch_induced_write(shape_, layout_, input, memory, out, stream);
  HostExecutor executor;
  InducedChain<HostExecutor>(shape_, layout_, input, memory, executor).write(out);
}

}  // namespace gld
