#include "bindings/module.h"

namespace gld {

void bind_feature(pybind11::module_&) {}

}  // namespace gld
