#include "graph/csr_pieces.h"

#include "common/error.h"

namespace gld {

CsrPieces make_csr_pieces(std::shared_ptr<const PartitionBook> book, std::vector<std::shared_ptr<const Csr>> pieces) {
  if (static_cast<int>(pieces.size()) != book->num_partitions())
    throw InvalidArgument(
        message("pieces: expected one for each of ", book->num_partitions(), " partitions, got ", pieces.size()));
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p]->num_rows() != book->size(static_cast<int>(p)))
      throw InvalidArgument(message("pieces[", p, "]: expected ", book->size(static_cast<int>(p)),
                                    " rows, as the book gives it, got ", pieces[p]->num_rows()));
    if (pieces[p]->num_cols != pieces[0]->num_cols || pieces[p]->indices.dtype != pieces[0]->indices.dtype)
      throw InvalidArgument(
          message("pieces[", p, "]: number of columns or index dtype differ from those of pieces[0]"));
  }
  return {std::move(book), std::move(pieces)};
}

}  // namespace gld
