// What one connection has lent to a peer of this host: payloads in regions of shared memory that the peer has mapped.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/frame.h"
#include "rpc/value.h"

namespace gld::rpc {

// All methods may be called from any thread.
class Lending {
 public:
  // The peer has mapped a region, which has this number on the connection.
  void accept(uint64_t region, uint64_t number);
  // Nothing new is lent from it.
  void forget(uint64_t region);
  // Lends a payload, whose owner is kept until it comes back: where the peer finds it, as a list of places has it.
  // Nothing where the peer has not mapped the region, or has something at this place already.
  std::optional<std::pair<uint64_t, uint64_t>> lend(SharedPlace place, std::shared_ptr<const void> owner);
  // Whether the peer is to be offered the region: it was not, yet. True once.
  bool may_offer(uint64_t region);
  // The peer was not told of this one.
  void take_back(std::pair<uint64_t, uint64_t> place);
  // The peer gives places back, by a frame. Whether nothing is left of that for others.
  bool take_back(Frame& frame);
  uint64_t count() const;  // of payloads that were ever lent

  struct Lent {
    SharedPlace place;
    std::shared_ptr<const void> owner;
  };
  // The connection is gone: what is lent, which the peer may still read. Nothing is lent any more.
  std::vector<Lent> close();

 private:
  mutable std::mutex mutex_;  // of what follows
  std::map<uint64_t, uint64_t> numbers_;
  std::set<uint64_t> offered_;
  std::map<std::pair<uint64_t, uint64_t>, Lent> lent_;  // by number and offset
  uint64_t count_ = 0;
  bool is_closed_ = false;
};

// Meta data of a frame whose payload is lent, or whose payload is given back: [[number, offset]].
std::string pack_place(std::pair<uint64_t, uint64_t> place);
// Reads it. Throws ProtocolError.
std::pair<uint64_t, uint64_t> read_place(std::string_view meta);

}  // namespace gld::rpc
