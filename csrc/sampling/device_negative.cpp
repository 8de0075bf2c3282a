#include "sampling/device_negative.h"

#include "common/cuda/host_executor.h"
#include "common/error.h"
#include "sampling/cuda/launch_negative.h"

namespace gld {
namespace {

NegativeEnd checked_end(const DrawnEnd& end, int64_t num_slots) {
  if (num_slots > 0 && end.num_nodes < 1)
    throw InvalidArgument(message("num_nodes: expected at least 1 to draw from, got ", end.num_nodes));
  check_vector(end.nodes, kInt64, num_slots, "nodes");
  if (end.weights.defined() != end.sums.defined()) throw InvalidArgument("weights, sums: expected both or none");
  check_weight_type(end.weights, end.num_nodes);
  if (end.sums.defined()) check_vector(end.sums, kFloat64, end.num_nodes, "sums");
  if (end.times.defined() != end.limits.defined()) throw InvalidArgument("times, limits: expected both or none");
  if (end.times.defined()) {
    check_vector(end.times, kInt64, end.num_nodes, "times");
    check_vector(end.limits, kInt64, num_slots, "limits");
    if (end.earliest < 0 || end.earliest >= end.num_nodes)
      throw InvalidArgument(message("earliest: expected a node in [0, ", end.num_nodes, "), got ", end.earliest));
  }
  return {end.num_nodes,
          {end.sums.as<double>(), WeightReader(end.weights)},
          end.times.as<int64_t>(),
          end.limits.as<int64_t>(),
          end.earliest,
          end.stride,
          end.first,
          end.nodes.as<int64_t>()};
}

DrawNegatives checked(const NegativeRequest& request) {
  check_vector(request.is_open, kUInt8, request.is_open.numel(), "is_open");
  const int64_t num_slots = request.is_open.numel();
  if (request.num_trials < 1)
    throw InvalidArgument(message("num_trials: expected at least 1, got ", request.num_trials));
  if (request.sources == nullptr) {
    check_index_vector(request.given_sources, "sources");
    if (request.given_sources.numel() != num_slots)
      throw InvalidArgument(
          message("sources: expected one for each of ", num_slots, " slots, got ", request.given_sources.numel()));
  }
  return {request.sources == nullptr ? NegativeEnd{} : checked_end(*request.sources, num_slots),
          checked_end(request.targets, num_slots),
          request.sources != nullptr,
          IdReader(request.given_sources),
          request.edges == nullptr ? EdgeSet() : EdgeSet(*request.edges),
          request.edges != nullptr,
          request.rows_are_sources,
          request.key,
          num_slots,
          request.num_trials,
          request.is_open.as<uint8_t>()};
}

}  // namespace

void draw_negatives_on_device(const NegativeRequest& request, CudaStream stream) {
  const DrawNegatives draw = checked(request);
  if (stream.device != kHost) return launch_negatives(draw, stream);
  HostExecutor executor;
  run_asking(executor, draw);
}

void has_edges_on_device(const Csr& csr, const Tensor& rows, const Tensor& cols, const Tensor& found,
                         const Tensor& status, CudaStream stream) {
  check_index_vector(rows, "rows");
  check_index_vector(cols, "cols");
  const int64_t count = rows.numel();
  if (cols.numel() != count)
    throw InvalidArgument(message("cols: expected as many entries as rows, ", count, ", got ", cols.numel()));
  check_vector(found, kUInt8, count, "found");
  check_vector(status, kInt64, 1, "status");
  const HasEdges ask{EdgeSet(csr), IdReader(rows), IdReader(cols), count, found.as<uint8_t>(), status.as<uint64_t>()};
  if (stream.device != kHost) return launch_has_edges(ask, stream);
  HostExecutor executor;
  run_asking(executor, ask);
}

}  // namespace gld
