#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/dlpack.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "common/buffer_pool.h"
#include "common/copy_bytes.h"
#include "common/crc32.h"
#include "common/cuda.h"
#include "common/error.h"
#include "common/pulse.h"
#include "common/thread_pool.h"

namespace py = pybind11;

namespace gld {
namespace {

void copy_parts(const py::sequence& parts, const py::buffer& destination) {
  const BufferViews views(parts);
  const py::buffer_info target = destination.request(/*writable=*/true);
  if (target.ndim != 1 || target.strides[0] != target.itemsize)
    throw InvalidArgument("destination: expected one contiguous dimension");
  const auto room = static_cast<size_t>(target.size * target.itemsize);
  size_t total = 0;
  for (const Py_buffer& view : views.get()) total += static_cast<size_t>(view.len);
  if (total > room) throw InvalidArgument(message("destination: expected at least ", total, " bytes, got ", room));
  GilReleased no_gil;  // the views pin the memory
  auto* to = static_cast<char*>(target.ptr);
  for (const Py_buffer& view : views.get()) {
    copy_bytes(to, view.buf, static_cast<size_t>(view.len));
    to += view.len;
  }
}

// Of the segments of a message (rpc/wire/encoded.py).
constexpr size_t kSegmentAlignment = 64;

std::vector<int64_t> copy_segments(const py::sequence& segments, const py::buffer& destination,
                                   const std::vector<uintptr_t>& left_out) {
  const BufferViews views(segments);
  const py::buffer_info target = destination.request(/*writable=*/true);
  const auto room = static_cast<size_t>(target.size * target.itemsize);
  std::vector<int64_t> starts(left_out.size(), -1);
  std::vector<std::pair<size_t, const Py_buffer*>> copied;
  size_t at = 0;
  for (const Py_buffer& view : views.get()) {
    const auto nbytes = static_cast<size_t>(view.len);
    if (at + nbytes > room)
      throw InvalidArgument(message("destination: expected at least ", at + nbytes, " bytes, got ", room));
    const auto found = std::find(left_out.begin(), left_out.end(), reinterpret_cast<uintptr_t>(view.buf));
    if (nbytes == 0 || found == left_out.end())
      copied.emplace_back(at, &view);
    else
      starts[found - left_out.begin()] = static_cast<int64_t>(at);
    at += (nbytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  }
  GilReleased no_gil;  // the views pin the memory
  for (const auto& [start, view] : copied)
    copy_bytes(static_cast<char*>(target.ptr) + start, view->buf, static_cast<size_t>(view->len));
  return starts;
}

uint32_t crc32_of(const py::buffer& bytes, uint32_t before) {
  const BufferViews views(py::make_tuple(bytes));
  const Py_buffer& view = views.get().front();
  GilReleased no_gil;  // the views pin the memory
  return crc32(view.buf, static_cast<size_t>(view.len), before);
}

void lock_pool_pages(int device) {
  if (!cuda_is_built()) throw CudaError("lock_pool_pages: this build has no CUDA");
  const auto lock = [device](void* memory, size_t bytes) {
    try {
      pin_host_memory(memory, bytes, /*read_only=*/false, device);
    } catch (const CudaError&) {  // then copies from it pass through other memory
      return false;
    }
    return true;
  };
  BufferPool::global().lock_pages({lock, [device](void* memory) { unpin_host_memory(memory, device); }});
}

}  // namespace

void bind_common(py::module_& m) {
  py::class_<Buffer>(m, "Buffer", py::buffer_protocol(),
                     "nbytes of pooled, writable, uninitialised memory, 64-byte aligned. Goes back to the pool when "
                     "the object and every memoryview or tensor over it is gone.")
      .def(py::init([](size_t nbytes) { return Buffer{BufferPool::global().allocate(nbytes), nbytes}; }),
           py::arg("nbytes"))
      .def("__len__", [](const Buffer& self) { return self.nbytes; })
      .def_buffer([](Buffer& self) {
        return py::buffer_info(self.memory.get(), 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(self.nbytes));
      });

  m.def("copy_parts", &copy_parts, py::arg("parts"), py::arg("destination"),
        "Copies buffers, one after the other, into a writable one; large ones past the caches. Releases the GIL.");

  m.def("copy_segments", &copy_segments, py::arg("segments"), py::arg("destination"), py::arg("left_out"),
        "Copies buffers to consecutive multiples of 64 bytes of a writable one, but for those that begin at an address "
        "in `left_out`: gives where the place of each of these begins, -1 of one that is not among the buffers. "
        "Releases the GIL.");

  m.def("crc32", &crc32_of, py::arg("bytes"), py::arg("before") = 0,
        "CRC-32 of a contiguous buffer that follows bytes of the CRC-32 `before`, as zlib.crc32. Releases the GIL.");

  m.def(
      "pool_stats",
      [] {
        const BufferPool::Stats stats = BufferPool::global().stats();
        py::dict out;
        out["idle_bytes"] = stats.idle_bytes;
        out["in_use_bytes"] = stats.in_use_bytes;
        out["hits"] = stats.hits;
        out["misses"] = stats.misses;
        return out;
      },
      "Counters of the buffer pool: idle_bytes, in_use_bytes, hits, misses.");
  // Giving back gigabytes takes the system a while.
  m.def(
      "set_pool_capacity", [](size_t nbytes) { BufferPool::global().set_capacity(nbytes); },
      py::call_guard<GilReleased>(), py::arg("nbytes"));
  m.def("trim_pool", [] { BufferPool::global().trim(); }, py::call_guard<GilReleased>());
  m.def(
      "lock_pool_pages", &lock_pool_pages, py::call_guard<GilReleased>(), py::arg("device"),
      "Pooled memory is page-locked from now on, for GPUs to copy from while the host goes on: new blocks of 2 MiB and "
      "more, where the system allows it; on behalf of a GPU that the process uses. CudaError in builds without CUDA.");

  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(
      m, "ThreadPool",
      "Threads for the loops of one batch; `num_threads` counts the caller and never changes a result.")
      .def(py::init<int>(), py::arg("num_threads"))
      .def_property_readonly("size", &ThreadPool::size);

  m.def(
      "start_pulse",
      [](int descriptor, int interval_ms, char mark) {
        start_pulse(descriptor, std::chrono::milliseconds(interval_ms), mark);
      },
      py::arg("descriptor"), py::arg("interval_ms"), py::arg("mark"),
      "Writes the character `mark` to a pipe now and every interval, from a thread that needs no interpreter, until "
      "its "
      "other end is closed. The descriptor stays open.");

  m.def("cuda_is_built", &cuda_is_built);
  m.def("cuda_build_version", &cuda_build_version);
  m.def("cuda_device_count", &cuda_device_count);
  m.def("cuda_can_access_peer", &cuda_can_access_peer, py::arg("device"), py::arg("peer"));
  m.def("new_stream", &new_stream, py::arg("device"),
        "The handle of a stream of the GPU that waits for no other and lives as long as the process.");
}

}  // namespace gld
