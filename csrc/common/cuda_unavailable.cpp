// Compiled instead of the .cu files where CUDA is off.
#include "common/cuda.h"

namespace gld {

bool cuda_is_built() { return false; }
std::string cuda_build_version() { return ""; }
int cuda_device_count() { return 0; }

}  // namespace gld
