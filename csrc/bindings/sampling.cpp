#include "bindings/module.h"

namespace gld {

void bind_sampling(pybind11::module_&) {}

}  // namespace gld
