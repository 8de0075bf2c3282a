// Compiled instead of the .cu files where CUDA is off.
#include "common/cuda.h"
#include "common/error.h"
#include "feature/cuda/launch_gather.h"
#include "sampling/cuda/launch_batch.h"
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
bool gpu_can_read(const void*, int) { return false; }

void launch_batch(const BatchShape&, const BatchLayout&, const BatchInput&, BatchMemory, CudaStream) { refuse(); }
void launch_induced_count(const InducedShape&, const InducedLayout&, const InducedInput&, BatchMemory, CudaStream) {
  refuse();
}
void launch_induced_write(const InducedShape&, const InducedLayout&, const InducedInput&, BatchMemory,
                          const std::vector<InducedOutput>&, CudaStream) {
  refuse();
}
void launch_copy(const WantedRows&, int64_t, CudaStream) { refuse(); }
void launch_cast(const CastElements&, CudaStream) { refuse(); }

}  // namespace gld
