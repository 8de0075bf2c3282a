// Something that takes one or several rounds of queries to the holders of partitions: a batch's hops, a lookup.
//
// An exchange sends nothing and waits for nothing. Who drives it (the runner, or Python where the RPC's engine is in
// Python) repeats, until next() asks nothing:
//
//   queries = next(); send them; meanwhile(); take(i, answer) of every query; stitch()
//
// One thread at a time.
#pragma once
#include <cstddef>
#include <vector>

#include "rpc/value.h"

namespace gld::exchange {

struct Asked {
  int partition;
  rpc::OutgoingValue query;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // The queries of the next round; none where all is there.
  virtual std::vector<Asked> next() = 0;
  // What can be done while others work.
  virtual void meanwhile() {}
  // The answer to the i-th query of the round. Throws rpc::ProtocolError, and InvalidArgument or UnknownId where its
  // values are not what was asked for.
  virtual void take(size_t i, const rpc::IncomingValue& answer) = 0;
  // All answers of the round were taken: puts them together.
  virtual void stitch() {}
};

}  // namespace gld::exchange
