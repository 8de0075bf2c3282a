// Python values as msgpack trees and segments of bytes, and back. The format, and what may travel, are described in
// graphlearn_dist/rpc/wire/codec.py.
#pragma once
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/msgpack.h"

namespace gld {

constexpr int kMaxNesting = 32;
constexpr size_t kMaxValueHeadBytes = 60 << 10;  // leaves room in a frame's 64 KiB for what the frame itself has to say

// Segments start at multiples of 64.
constexpr size_t padded(size_t nbytes) { return (nbytes + 63) / 64 * 64; }

// The numbers are part of the format.
enum Extension : int8_t { kTensor = 1, kMessage = 2, kTuple = 3, kPairs = 4, kBytes = 5, kDtype = 6 };

// What the codec knows of Python.
struct Vocabulary {
  struct Dtype {
    pybind11::object torch;
    size_t item_bytes;
    bool has_buffer;  // whether Python's buffers know it
  };
  std::vector<Dtype> dtypes;           // by code
  pybind11::object tensor_type;        // torch.Tensor
  pybind11::object size_type;          // torch.Size
  pybind11::dict by_type, by_name;     // registered messages
  pybind11::object tensor_bytes;       // any tensor's bytes, or those of a copy, as a memoryview
  pybind11::object frombuffer, empty;  // torch's
};

// Takes a value apart.
class Encoder {
 public:
  Encoder(const Vocabulary& vocabulary, size_t max_tree_bytes)
      : vocabulary_(vocabulary), max_tree_bytes_(max_tree_bytes) {}
  // Head, segments (memoryviews) and bytes of the payload. Throws InvalidArgument.
  pybind11::tuple encode(const pybind11::handle& object);

 private:
  using Writer = rpc::msgpack::Writer;
  void walk(const pybind11::handle& object, int depth, Writer& out);
  void items(const pybind11::handle& sequence, int depth, Writer& out);
  void mapping(const pybind11::handle& dict, int depth, Writer& out);
  void blob(const pybind11::handle& object, Writer& out);
  void other(const pybind11::handle& object, int depth, Writer& out);
  void message_of(const pybind11::handle& description, const pybind11::handle& object, int depth, Writer& out);
  size_t code_of(const pybind11::handle& dtype) const;
  size_t add_tensor(const pybind11::handle& tensor);
  size_t add_bytes(const pybind11::object& bytes);
  size_t append(const pybind11::object& view, size_t nbytes);
  pybind11::bytes head(const Writer& tree);

  const Vocabulary& vocabulary_;
  const size_t max_tree_bytes_;
  Writer descriptors_;
  size_t num_segments_ = 0;
  pybind11::list views_;
  size_t nbytes_ = 0;
};

// Puts a value together. Throws rpc::ProtocolError where the bytes break a rule of the format; nothing was built then.
class Decoder {
 public:
  // `payload`: any buffer; None where there is none.
  Decoder(const Vocabulary& vocabulary, size_t max_tree_bytes, pybind11::object payload);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  pybind11::object decode(std::string_view head);

 private:
  using Reader = rpc::msgpack::Reader;
  using Item = rpc::msgpack::Item;
  struct Segment {
    size_t dtype;
    std::vector<size_t> shape;
    size_t offset, nbytes;
    bool is_taken = false;  // became `bytes`
  };
  void read_descriptors(Reader descriptors);
  Segment read_descriptor(Reader& descriptors);
  size_t dtype_of(const Item& code) const;
  pybind11::object walk(Reader& tree, int depth);
  pybind11::object items(Reader& tree, size_t count, int depth);
  pybind11::object mapping(Reader& tree, size_t count, int depth);
  pybind11::object extension(const Item& item, int depth);
  pybind11::object list_extension(int code, Reader& content, size_t count, int depth);
  pybind11::object message_of(Reader& content, size_t count, int depth);
  pybind11::object pairs(Reader& content, size_t count, int depth);
  pybind11::object tensor(const Segment& segment) const;
  pybind11::object flat_tensor(const Segment& segment) const;
  pybind11::object blob(Segment& segment, uint64_t number) const;
  Segment& segment(const Item& index);

  const Vocabulary& vocabulary_;
  const size_t max_tree_bytes_;
  pybind11::object payload_;
  Py_buffer view_{};  // of it
  std::vector<Segment> segments_;
};

// What a frame says about itself: None, bool, int, float, str, bytes, and lists and dicts of them; tuples become lists.
// Throws InvalidArgument.
void write_plain(const pybind11::handle& object, rpc::msgpack::Writer& out, int depth = 0);
// Nothing but a list of such values, without dicts. Throws rpc::ProtocolError.
pybind11::object read_plain(rpc::msgpack::Reader& reader, int depth = 0);

// Leaves of both kinds of tree: False, or null, where it is none.
bool write_leaf(const pybind11::handle& object, rpc::msgpack::Writer& out);
pybind11::object as_leaf(const rpc::msgpack::Item& item);

// An attribute by its name, which is made once.
pybind11::object attribute(const pybind11::handle& object, const char* name);

}  // namespace gld
