// One range of addresses over pieces of memory that lie apart, as in the memories of several GPUs of a host.
//
// Kernels read it like any other memory: which GPU a read goes to is a matter of page tables (as in NVIDIA's sample
// vectorAddMMAP, and the "continuous" memory of cuGraph's WholeGraph). So no kernel looks for a piece, rows may lie
// across the end of one, and memory in one piece pays nothing for those that are in several.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gld {

// Takes memory and maps it for one reader: the memory of the host, or that of GPUs. A piece of memory is a number of
// its own. What fails throws, but in giving back.
class PieceMapper {
 public:
  virtual ~PieceMapper() = default;
  // Throws where the reader cannot read what lies in one of these places.
  virtual void check(const std::vector<int>& places) const = 0;
  // What sizes of pieces are multiples of, in all of these places.
  virtual size_t granularity(const std::vector<int>& places) const = 0;
  virtual uint64_t take(int place, size_t num_bytes) const = 0;
  // The same piece for another range, in this process or another: as a new descriptor, and from one, which stays open.
  virtual int share(uint64_t piece) const = 0;
  virtual uint64_t receive(int descriptor) const = 0;
  virtual void give_back(uint64_t piece) const noexcept = 0;

  virtual char* reserve(size_t num_bytes) const = 0;
  // For the reader to read and to write.
  virtual void map(char* at, size_t num_bytes, uint64_t piece) const = 0;
  virtual void unmap(char* at, size_t num_bytes) const noexcept = 0;
  virtual void release(char* at, size_t num_bytes) const noexcept = 0;
  // Waits for what the reader was given to do until now. False: that could not be learned.
  virtual bool wait() const noexcept = 0;
};

// Pieces in host memory, whatever their places are: what tests map, where there are no GPUs.
std::unique_ptr<PieceMapper> make_host_mapper();

struct MemoryPiece {
  int place;  // a GPU
  size_t num_bytes;
};

// Equal shares of `num_bytes` in each place, rounded up to a multiple of `granularity`: of little memory the last
// places have none. There are places, and the granularity is not 0.
std::vector<MemoryPiece> divide_memory(const std::vector<int>& places, size_t num_bytes, size_t granularity);

class SpreadMemory {
 public:
  // Takes memory, an equal share in each place. Nothing is written to it.
  SpreadMemory(std::shared_ptr<const PieceMapper> mapper, const std::vector<int>& places, size_t num_bytes);
  // Maps the pieces of another SpreadMemory, which it described: pieces(), and share() in their order.
  SpreadMemory(std::shared_ptr<const PieceMapper> mapper, std::vector<MemoryPiece> pieces,
               const std::vector<int>& descriptors);
  // Waits for the reader. A piece goes when it is mapped nowhere any more. In a fork nothing is given back: all of it
  // is the parent's. Nor is it where the wait fails, as while a CUDA graph is captured: a page that is taken from under
  // a kernel would end the process's use of the GPU.
  ~SpreadMemory();
  SpreadMemory(const SpreadMemory&) = delete;
  SpreadMemory& operator=(const SpreadMemory&) = delete;

  char* begin() const { return begin_; }
  size_t num_bytes() const { return num_bytes_; }  // of all pieces
  const std::vector<MemoryPiece>& pieces() const { return pieces_; }
  // A new descriptor of each piece.
  std::vector<int> share() const;

 private:
  SpreadMemory(std::shared_ptr<const PieceMapper> mapper, std::vector<MemoryPiece> pieces);
  void map_all();

  std::shared_ptr<const PieceMapper> mapper_;
  std::vector<MemoryPiece> pieces_;
  std::vector<uint64_t> taken_;
  char* begin_ = nullptr;
  size_t num_bytes_ = 0, num_mapped_ = 0;
  const int process_;
};

}  // namespace gld
