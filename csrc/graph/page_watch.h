// Rows of a graph that are read from disk, page by page: noticed by the faults that a hop had to wait for, and asked
// for ahead of the hops that follow, so that the disk has many reads at a time and not one.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/tensor.h"

namespace gld {

struct Csr;

// Any thread may call. What it decides changes how long a hop takes, and never what it picks.
class PageWatch {
 public:
  // Whether the pages of a hop's rows shall be asked for before it picks. One hop of some is left as it is, to see
  // whether that is still of use.
  bool begins_hop();
  // A hop over so many rows is over, at whose picks so many pages were waited for; `ahead`: what begins_hop() said.
  void ends_hop(bool ahead, int64_t num_rows, int64_t num_faults);
  // True once.
  bool first_ahead() { return !was_ahead_.exchange(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_ahead_{false}, was_ahead_{false};
  std::atomic<uint32_t> turn_{0};
};

// Whether the pages of a hop's rows shall be asked for. From the first time on the arrays of the edges are read without
// their surroundings: the system's reading ahead of what is picked at random is most of what it reads.
bool asks_ahead(const Csr& csr);

// The pages of the rows that a hop will pick from: asked for in order, so that those that touch are one read.
class PagesAhead {
 public:
  // Adds a row's edges, unless they are many: a row that is so long is either in memory, as it is picked often, or most
  // of it is not needed.
  void add(const Csr& csr, int64_t first_edge, int64_t num_edges, bool with_edge_ids);
  // Asks for what was added and not asked for yet.
  void ask();

 private:
  struct Pages {
    uintptr_t first, last;
  };
  void add(const Tensor& array, int64_t first, int64_t count);

  std::vector<Pages> pages_;
};

// Pages that this thread had to wait for so far.
int64_t pages_waited_for();

// Has a mapped array read page by page from now on, without what the system reads ahead around each. A hint.
void read_at_random(const Tensor& array);

}  // namespace gld
