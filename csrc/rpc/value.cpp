#include "rpc/value.h"

#include "common/buffer_pool.h"

namespace gld::rpc {

OutgoingValue made(OutgoingValue value) {
  for (Segment& segment : value.segments) {
    if (segment.source == nullptr) continue;
    const std::shared_ptr<void> memory = BufferPool::global().allocate(segment.bytes);
    segment.source->write(0, segment.bytes, memory.get());
    segment = {memory.get(), segment.bytes, memory, nullptr};
  }
  return value;
}

}  // namespace gld::rpc
