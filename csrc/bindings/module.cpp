#include "bindings/module.h"

#include "common/error.h"
#include "rpc/frame.h"

namespace py = pybind11;

namespace {

// Raises the exception class of that name from graphlearn_dist.errors.
void raise_python(const char* class_name, const char* text) {
  py::object type = py::module_::import("graphlearn_dist.errors").attr(class_name);
  PyErr_SetString(type.ptr(), text);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native core of graphlearn_dist. Tensors cross as DLPack capsules.";
  m.attr("__version__") = GLD_VERSION;
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const gld::UnknownId& e) {
      raise_python("UnknownIdError", e.what());
    } catch (const gld::InvalidArgument& e) {
      raise_python("InvalidArgumentError", e.what());
    } catch (const gld::PartitionFormat& e) {
      raise_python("PartitionFormatError", e.what());
    } catch (const gld::StorageFailure& e) {
      raise_python("StorageError", e.what());
    } catch (const gld::CudaError& e) {
      raise_python("CudaError", e.what());
    } catch (const gld::MessageTooLarge& e) {
      raise_python("MessageTooLargeError", e.what());
    } catch (const gld::ChannelTimeout& e) {
      raise_python("ChannelTimeoutError", e.what());
    } catch (const gld::ChannelClosed& e) {
      raise_python("ChannelClosedError", e.what());
    } catch (const gld::ChannelError& e) {
      raise_python("ChannelError", e.what());
    } catch (const gld::rpc::ProtocolError& e) {
      raise_python("ProtocolError", e.what());
    }
  });
  gld::bind_common(m);
  gld::bind_channel(m);
  gld::bind_routing(m);
  gld::bind_graph(m);
  gld::bind_sampling(m);
  gld::bind_hgt(m);
  gld::bind_subgraph(m);
  gld::bind_ingest(m);
  gld::bind_feature(m);
  gld::bind_device(m);
  gld::bind_device_subgraph(m);
  gld::bind_spread_memory(m);
  gld::bind_codec(m);
  gld::bind_rpc(m);
  gld::bind_serving(m);
  gld::bind_exchange(m);
  gld::bind_exchange_asking(m);
  gld::bind_ordering(m);
  gld::bind_system(m);
}
