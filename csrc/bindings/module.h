// Each operator family binds itself; module.cpp calls them in turn.
#pragma once
#include <pybind11/pybind11.h>

namespace gld {

void bind_common(pybind11::module_& m);
void bind_codec(pybind11::module_& m);
void bind_channel(pybind11::module_& m);
void bind_routing(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);
void bind_hgt(pybind11::module_& m);
void bind_subgraph(pybind11::module_& m);
void bind_ingest(pybind11::module_& m);
void bind_feature(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_device_subgraph(pybind11::module_& m);
void bind_spread_memory(pybind11::module_& m);
void bind_exchange(pybind11::module_& m);
void bind_rpc(pybind11::module_& m);
void bind_serving(pybind11::module_& m);
void bind_exchange_asking(pybind11::module_& m);
void bind_ordering(pybind11::module_& m);
void bind_system(pybind11::module_& m);

}  // namespace gld
