#include "bindings/module.h"

namespace gld {

void bind_graph(pybind11::module_&) {}

}  // namespace gld
