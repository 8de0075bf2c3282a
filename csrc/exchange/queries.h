// What holders of partitions are asked, and what they answer, as bytes.
//
// A head is msgpack: what is asked, and for each tensor its dtype and shape; the tensors lie in the payload, one behind
// the other. Ids are int32 where they fit, else int64. Who decodes believes nothing: a head of another form, dtypes and
// shapes that do not fit together, and a payload of other than its tensors' bytes throw rpc::ProtocolError before
// anything is made of them. Whether ids exist is for who looks them up.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/tensor.h"
#include "rpc/value.h"
#include "sampling/neighbor_sampler.h"

namespace gld::exchange {

// Neighbors of nodes, along one or several edge types. Answered by counts (uint8, int32 or int64 [n]), neighbors and
// edge ids (int32 or int64 [sum of counts]; undefined unless asked for) of each part.
struct HopQuery {
  struct Part {
    int edge_type = 0;
    HopDraw draw;  // its with_edge_ids is that of all parts
    Tensor ids;    // int32 or int64 [n], of the nodes
    Tensor trees;  // int32 or int64 [n]; undefined unless the batch is disjoint
    Tensor times;  // likewise; undefined where seeds have none
  };
  bool with_edge_ids = false;
  std::vector<Part> parts;
};

// Rows of features and the like. Answered by the rows of each part as they are stored, [n, ...].
struct RowsQuery {
  struct Part {
    std::string store;
    Tensor ids;  // int32 or int64 [n]
  };
  std::vector<Part> parts;
};

// Which ids of stores, whose rows lie with edges, are held here. Answered by uint8 [n] of each part.
struct OwnedQuery {
  std::vector<RowsQuery::Part> parts;
};

// Whether nodes have an edge to others. Answered by uint8 [n].
struct HasEdgesQuery {
  int edge_type = 0;
  Tensor ids, neighbors;  // int32 or int64 [n] each
};

// Edges of nodes to the nodes of a batch. Answered as a HopQuery, with places in `members` for neighbors.
struct InducedQuery {
  struct Part {
    int edge_type = 0;
    int member_type = 0;  // which of `members` is at the other end
    Tensor ids;           // int32 or int64 [n]
  };
  bool with_edge_ids = false;
  std::vector<Part> parts;
  std::vector<Tensor> members;  // int32 or int64 [m] each, global ids
};

// How many neighbors nodes have. Answered by uint8, int32 or int64 [n].
struct DegreesQuery {
  int edge_type = 0;
  Tensor ids;  // int32 or int64 [n]
};

using Query = std::variant<HopQuery, RowsQuery, OwnedQuery, HasEdgesQuery, InducedQuery, DegreesQuery>;

// The tensors' memory is sent from where it lies.
rpc::OutgoingValue encode_query(const Query& query);
// Tensors are views of the payload.
Query decode_query(const rpc::IncomingValue& value);

// A tensor of an answer, or a source of its bytes: then it has a dtype and a shape, and that for its owner.
struct Answered {
  Tensor tensor;
  std::shared_ptr<rpc::Source> source;
};

// An answer: tensors, some of them undefined, in an order that the query gives.
rpc::OutgoingValue encode_answer(std::vector<Answered> tensors);
rpc::OutgoingValue encode_answer(const std::vector<Tensor>& tensors);
// Throws rpc::ProtocolError unless there are `count` tensors.
std::vector<Tensor> decode_answer(const rpc::IncomingValue& value, size_t count);

// The same ids as int32 where all fit, else themselves. (routing/narrowed.h gives nothing where they do not.)
Tensor fewest_bytes(const Tensor& ids);

}  // namespace gld::exchange
