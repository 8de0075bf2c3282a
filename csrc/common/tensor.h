// The one way arrays enter and leave the core: a borrowed view of contiguous memory with a dtype and a shape.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"

namespace gld {

// Element kinds, numbered as in DLPack (https://dmlc.github.io/dlpack), so that conversion is a copy of fields.
enum class Kind : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct DType {
  Kind kind = Kind::kInt;
  uint8_t bits = 64;
  size_t size() const { return bits / 8; }
  bool operator==(const DType& other) const { return kind == other.kind && bits == other.bits; }
  bool operator!=(const DType& other) const { return !(*this == other); }
};

constexpr DType kInt32{Kind::kInt, 32};
constexpr DType kInt64{Kind::kInt, 64};
constexpr DType kFloat32{Kind::kFloat, 32};
constexpr DType kFloat64{Kind::kFloat, 64};
constexpr DType kUInt8{Kind::kUInt, 8};

// "int64", "float16", "bfloat16", "bool" and so on, and back; a name that is none throws InvalidArgument.
std::string to_string(DType dtype);
DType parse_dtype(const std::string& name);

// A contiguous tensor in host memory. `owner` keeps the memory alive; views share it.
struct Tensor {
  void* data = nullptr;
  DType dtype;
  std::vector<int64_t> shape;
  std::shared_ptr<void> owner;

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
  size_t nbytes() const { return static_cast<size_t>(numel()) * dtype.size(); }
  bool defined() const { return owner != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// A tensor of the given shape in pooled, uninitialised memory (see buffer_pool.h).
Tensor empty(std::vector<int64_t> shape, DType dtype);

// Checks that `tensor` is one-dimensional with int32 or int64 elements; the error names `name`.
void check_index_vector(const Tensor& tensor, const char* name);

// The same, and throws unless it is int64 with `count` entries.
void check_int64_vector(const Tensor& tensor, int64_t count, const char* name);

// Checks that `tensor` has one dimension, this dtype and this many elements; the error names `name`.
void check_vector(const Tensor& tensor, DType dtype, int64_t count, const char* name);

// Calls `body(T{})` with T = int32_t or int64_t according to the dtype.
template <typename Body>
decltype(auto) dispatch_index(DType dtype, const char* name, Body&& body) {
  if (dtype == kInt32) return body(int32_t{});
  if (dtype == kInt64) return body(int64_t{});
  throw InvalidArgument(message(name, ": expected dtype int32 or int64, got ", to_string(dtype)));
}

}  // namespace gld
