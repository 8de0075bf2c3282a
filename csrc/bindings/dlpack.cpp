#include "bindings/dlpack.h"

#include <utility>

#include "bindings/gil.h"
#include "common/cuda.h"

namespace py = pybind11;

namespace gld {
namespace {

// The ABI of DLPack 0.8 (unversioned capsules named "dltensor"), which every supported torch and numpy speaks.
struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
constexpr int32_t kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13;
constexpr char kCapsule[] = "dltensor", kUsedCapsule[] = "used_dltensor";

bool is_contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  for (int i = 0; i < tensor.ndim; ++i)
    if (tensor.shape[i] == 0) return true;  // nothing to stride over
  int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

int64_t num_elements(const DLTensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

struct Exported {
  Tensor tensor;
  std::vector<int64_t> strides;
  DLManagedTensor managed;
};

void destroy_unused_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kCapsule)) return;  // consumed: the consumer calls the deleter
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
  managed->deleter(managed);
}

struct Borrowed {
  Tensor tensor;
  DLDevice device;
};

bool is_host(int32_t device_type) { return device_type == kDLCPU || device_type == kDLCUDAHost; }

void check_is_tensor(const py::handle& object, const char* name) {
  if (!py::hasattr(object, "__dlpack__"))
    throw InvalidArgument(
        message(name, ": expected a tensor, got ", std::string(py::str(py::type::of(object).attr("__name__")))));
}

// torch refuses tensors without memory (meta, sparse), or that need a gradient, by errors of several classes.
py::object host_capsule(const py::handle& object, const char* name) {
  try {
    return object.attr("__dlpack__")();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const std::string why = py::str(error.value());
    throw InvalidArgument(message(name, ": expected a tensor with numbers in memory: ", why));
  }
}

// What the capsule that an object's __dlpack__ gave borrows.
Borrowed borrow(const py::object& capsule, const char* name) {
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  if (managed == nullptr) throw py::error_already_set();
  PyCapsule_SetName(capsule.ptr(), kUsedCapsule);
  // The producer's deleter may touch Python objects, so it runs with the GIL, wherever the view dies. At interpreter
  // exit there is no GIL to take any more; the memory goes with the process.
  std::shared_ptr<void> owner(managed, [](void* pointer) {
    auto* dying = static_cast<DLManagedTensor*>(pointer);
    if (dying->deleter == nullptr || !Py_IsInitialized()) return;
    GilHeld gil;
    dying->deleter(dying);
  });
  const DLTensor& source = managed->dl_tensor;
  if (source.dtype.lanes != 1) throw InvalidArgument(message(name, ": vector dtypes are not supported"));
  if (!is_contiguous(source)) throw InvalidArgument(message(name, ": expected a contiguous tensor"));
  // A tensor subclass that wraps others exports their shape and no memory.
  if (source.data == nullptr && num_elements(source) > 0)
    throw InvalidArgument(message(name, ": expected a tensor with numbers in memory, got one that has none"));
  Tensor tensor;
  tensor.data = static_cast<char*>(source.data) + source.byte_offset;
  tensor.dtype = {static_cast<Kind>(source.dtype.code), source.dtype.bits};
  tensor.shape.assign(source.shape, source.shape + source.ndim);
  tensor.owner = std::move(owner);
  return {std::move(tensor), source.device};
}

DLDevice device_of(const py::handle& object) {
  const py::tuple device = object.attr("__dlpack_device__")();
  return {py::cast<int32_t>(py::int_(device[0])), py::cast<int32_t>(py::int_(device[1]))};
}

// Of a tensor in the memory of a GPU, which may be another than the current one. No stream is waited for.
py::object capsule_on_device(const py::handle& object) {
  using namespace py::literals;
  // torch's __dlpack__() refuses tensors of other GPUs than the current one, its to_dlpack() does not.
  if (py::hasattr(object, "__torch_function__"))
    return py::module_::import("torch.utils.dlpack").attr("to_dlpack")(object);
  return object.attr("__dlpack__")("stream"_a = -1);
}

}  // namespace

Tensor from_python(const py::handle& object, const char* name) {
  check_is_tensor(object, name);
  Borrowed borrowed = borrow(host_capsule(object, name), name);
  if (!is_host(borrowed.device.device_type))
    throw InvalidArgument(message(name, ": expected a tensor in host memory, got one on a device"));
  return std::move(borrowed.tensor);
}

bool lies_on(const py::handle& object, int device) {
  const DLDevice found = device_of(object);
  return found.device_type == kDLCUDA && found.device_id == device;
}

Tensor from_python_on(const py::handle& object, const char* name, int device) {
  if (device == kHost) return from_python(object, name);
  check_is_tensor(object, name);
  Borrowed borrowed =
      borrow(is_host(device_of(object).device_type) ? host_capsule(object, name) : capsule_on_device(object), name);
  const Tensor& tensor = borrowed.tensor;
  const int32_t type = borrowed.device.device_type;
  if (!is_host(type) && type != kDLCUDA && type != kDLCUDAManaged)
    throw InvalidArgument(message(name, ": expected a tensor on a CUDA device or the host, got DLPack device ", type));
  // The driver is asked about host memory, which is pinned or not, and about that of other GPUs: where a tensor says
  // that it lies on this one it does, and the tensors of every batch say so.
  const bool is_known = type == kDLCUDA && borrowed.device.device_id == device;
  if (!is_known && tensor.nbytes() > 0 && !open_to_gpu(tensor.data, tensor.nbytes(), device))
    throw InvalidArgument(message(name, ": expected memory that GPU ", device,
                                  " can read (its own, that of a peer, or pinned host memory), got a tensor ",
                                  is_host(type) ? "in host memory that is not pinned" : "of another device"));
  return std::move(borrowed.tensor);
}

Tensor from_python_optional_on(const py::handle& object, const char* name, int device) {
  return object.is_none() ? Tensor{} : from_python_on(object, name, device);
}

Tensor from_python_optional(const py::handle& object, const char* name) {
  return object.is_none() ? Tensor{} : from_python(object, name);
}

py::object to_python(Tensor tensor, int device) {
  if (!tensor.defined()) return py::none();
  auto* exported = new Exported{std::move(tensor), {}, {}};
  const Tensor& source = exported->tensor;
  exported->strides.resize(source.shape.size());
  int64_t stride = 1;
  for (size_t i = source.shape.size(); i-- > 0;) {
    exported->strides[i] = stride;
    stride *= source.shape[i];
  }
  exported->managed.dl_tensor = {source.data,
                                 device == kHost ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device},
                                 static_cast<int32_t>(source.shape.size()),
                                 {static_cast<uint8_t>(source.dtype.kind), source.dtype.bits, 1},
                                 exported->tensor.shape.data(),
                                 exported->strides.data(),
                                 0};
  exported->managed.manager_ctx = exported;
  exported->managed.deleter = [](DLManagedTensor* managed) { delete static_cast<Exported*>(managed->manager_ctx); };
  return py::reinterpret_steal<py::capsule>(PyCapsule_New(&exported->managed, kCapsule, destroy_unused_capsule));
}

}  // namespace gld
