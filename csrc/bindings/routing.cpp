#include "bindings/module.h"

namespace gld {

void bind_routing(pybind11::module_&) {}

}  // namespace gld
