#include "common/tensor.h"

#include <new>

#include "common/buffer_pool.h"

namespace gld {

std::string to_string(DType dtype) {
  const char* name = "unknown";
  switch (dtype.kind) {
    case Kind::kInt:
      name = "int";
      break;
    case Kind::kUInt:
      name = "uint";
      break;
    case Kind::kFloat:
      name = "float";
      break;
    case Kind::kBfloat:
      name = "bfloat";
      break;
    case Kind::kComplex:
      name = "complex";
      break;
    case Kind::kBool:
      return "bool";
  }
  return message(name, static_cast<int>(dtype.bits));
}

DType parse_dtype(const std::string& name) {
  for (Kind kind : {Kind::kInt, Kind::kUInt, Kind::kFloat, Kind::kBfloat, Kind::kComplex})
    for (uint8_t bits : {8, 16, 32, 64, 128})
      if (to_string({kind, bits}) == name) return {kind, bits};
  if (name == "bool") return {Kind::kBool, 8};
  throw InvalidArgument(message("dtype: expected a name such as float32, got ", name));
}

Tensor empty(std::vector<int64_t> shape, DType dtype) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  try {
    int64_t num_bytes = static_cast<int64_t>(dtype.size());
    for (const int64_t extent : tensor.shape)
      if (extent < 0 || __builtin_mul_overflow(num_bytes, extent, &num_bytes)) throw std::bad_alloc();
    tensor.owner = BufferPool::global().allocate(tensor.nbytes());
  } catch (const std::bad_alloc&) {
    std::ostringstream extents;
    for (size_t i = 0; i < tensor.shape.size(); ++i) extents << (i == 0 ? "" : ", ") << tensor.shape[i];
    throw OutOfMemory(message("no memory for a tensor ", to_string(dtype), " [", extents.str(), "]"));
  }
  tensor.data = tensor.owner.get();
  return tensor;
}

void check_index_vector(const Tensor& tensor, const char* name) {
  if (tensor.shape.size() != 1)
    throw InvalidArgument(
        message(name, ": expected a one-dimensional tensor, got ", tensor.shape.size(), " dimensions"));
  if (tensor.dtype != kInt32 && tensor.dtype != kInt64)
    throw InvalidArgument(message(name, ": expected dtype int32 or int64, got ", to_string(tensor.dtype)));
}

void check_int64_vector(const Tensor& tensor, int64_t count, const char* name) {
  check_index_vector(tensor, name);
  if (tensor.dtype != kInt64 || tensor.shape[0] != count)
    throw InvalidArgument(
        message(name, ": expected int64 [", count, "], got ", to_string(tensor.dtype), " [", tensor.shape[0], "]"));
}

void check_vector(const Tensor& tensor, DType dtype, int64_t count, const char* name) {
  if (tensor.shape.size() == 1 && tensor.dtype == dtype && tensor.shape[0] == count) return;
  throw InvalidArgument(message(name, ": expected ", to_string(dtype), " [", count, "], got ", to_string(tensor.dtype),
                                " of ", tensor.numel(), " elements in ", tensor.shape.size(), " dimensions"));
}

}  // namespace gld
