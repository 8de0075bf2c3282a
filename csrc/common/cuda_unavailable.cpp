// Compiled instead of the .cu files where CUDA is off.
#include "common/cuda.h"
#include "common/error.h"
#include "feature/cuda/launch_gather.h"
#include "sampling/cuda/launch_batch.h"
#include "sampling/cuda/launch_negative.h"
#include "subgraph/cuda/launch_induced.h"

namespace gld {
namespace {

[[noreturn]] void refuse() {
  throw InvalidArgument("device: GPU kernels were asked for, but this build has none; build with WITH_CUDA=on");
}

}  // namespace

bool cuda_is_built() { return false; }
std::string cuda_build_version() { return ""; }
int cuda_device_count() { return 0; }
bool cuda_can_access_peer(int, int) { return false; }
bool open_to_gpu(const void*, size_t, int) { return false; }
void pin_host_memory(void*, size_t, bool, int) { refuse(); }
void unpin_host_memory(void*, int) {}
uintptr_t new_stream(int) { refuse(); }
std::unique_ptr<PieceMapper> make_gpu_mapper(int) { refuse(); }

void launch_batch(const BatchShape&, const BatchLayout&, const BatchInput&, BatchMemory, CudaStream) { refuse(); }
void launch_induced_count(const InducedShape&, const InducedLayout&, const InducedInput&, BatchMemory, CudaStream) {
  refuse();
}
void launch_induced_write(const InducedShape&, const InducedLayout&, const InducedInput&, BatchMemory,
                          const std::vector<InducedOutput>&, CudaStream) {
  refuse();
}
void launch_negatives(const DrawNegatives&, CudaStream) { refuse(); }
void launch_has_edges(const HasEdges&, CudaStream) { refuse(); }
void launch_copy(const WantedRows&, int64_t, CudaStream) { refuse(); }
void launch_cast(const WantedRows&, int64_t, const CastElement&, CudaStream) { refuse(); }

}  // namespace gld
