#include "bindings/module.h"

namespace gld {

void bind_channel(pybind11::module_&) {}

}  // namespace gld
