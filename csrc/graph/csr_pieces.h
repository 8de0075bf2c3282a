// A graph whose rows lie in several pieces of memory of this process: partitions of it that are all at hand.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/csr.h"
#include "routing/partition_book.h"

namespace gld {

// pieces[p] holds the rows of the nodes that `book` gives to partition p, in the book's order, as global ids elsewhere.
struct CsrPieces {
  std::shared_ptr<const PartitionBook> book;
  std::vector<std::shared_ptr<const Csr>> pieces;

  int64_t num_rows() const { return book->num_ids(); }
  int64_t num_cols() const { return pieces[0]->num_cols; }
  DType index_dtype() const { return pieces[0]->indices.dtype; }
};

// Checks that there is one piece for each partition, with as many rows as the book gives it, and that all have one
// number of columns and one index dtype.
CsrPieces make_csr_pieces(std::shared_ptr<const PartitionBook> book, std::vector<std::shared_ptr<const Csr>> pieces);

}  // namespace gld
