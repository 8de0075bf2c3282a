// What must hold for whatever bytes come as a query: it is answered or refused by an exception that has a name in
// Python, and nothing is read or written beside it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/partition_server.h"
#include "exchange/queries.h"

namespace gld::test {

// A partition of two: a graph with weights and times and one with neither, a store by node, one with copies of the
// other partition's rows, and one by edge.
std::shared_ptr<exchange::PartitionServer> small_server();

// One query of each kind that it answers, and an answer.
std::vector<std::string> valid_queries();

// A value as it travels: the length of its head (two bytes), its head, its payload.
std::string as_bytes(rpc::OutgoingValue unmade);

// Whether it was answered. Throws where something does not hold.
bool check_any_query(const uint8_t* data, size_t size);

}  // namespace gld::test
