// Exceptions of the core. Bindings translate each to its namesake in graphlearn_dist.errors.
#pragma once
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace gld {

struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
struct UnknownId : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};
// Files of a partition hold what they cannot hold: they are damaged.
struct PartitionFormat : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A file of a data set cannot be used.
struct StorageFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The CUDA runtime refused or failed.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ChannelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ChannelClosed : ChannelError {
  using ChannelError::ChannelError;
};
struct ChannelTimeout : ChannelError {
  using ChannelError::ChannelError;
};
struct MessageTooLarge : ChannelError {
  using ChannelError::ChannelError;
};

// Memory that was not to be had. It reaches Python as MemoryError, as every std::bad_alloc does, and says for what.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// message("a=", 1, ", b=", 2): builds an error text from anything that streams.
template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace gld
