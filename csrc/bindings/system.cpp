#include <memory>
#include <string>

#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "channel/memory_file.h"
#include "channel/process_id.h"
#include "common/file_mapping.h"
#include "common/huge_pages.h"
#include "common/malloc_settings.h"

namespace py = pybind11;

namespace gld {

void bind_system(py::module_& m) {
  m.def(
      "create_memory_file",
      [](const std::string& name, uint64_t nbytes) {
        return as_os_error([&] { return create_memory_file(name.c_str(), nbytes); });
      },
      py::arg("name"), py::arg("nbytes"),
      "Descriptor of a new file in memory, without a name but for messages, of a size that nobody can change, which "
      "this user alone can open. OSError.");
  m.def(
      "has_fixed_size", [](int fd) { return as_os_error([&] { return has_fixed_size(fd); }); }, py::arg("fd"),
      "Whether the size of a file can no longer change. OSError where it is no memory file.");
  m.def(
      "open_process", [](int pid) { return as_os_error([&] { return open_process(pid); }); }, py::arg("pid"),
      "A descriptor that can be read once the process has ended. ProcessLookupError where it is no more; other "
      "OSErrors where the kernel (before 5.3) or a sandbox has no such descriptors.");
  m.def(
      "kill_process", [](int fd) { as_os_error([&] { return kill_process(fd), 0; }); }, py::arg("fd"),
      "Kills (SIGKILL) the process of a descriptor. ProcessLookupError where it has ended.");
  m.def(
      "return_large_blocks", &return_large_blocks, py::arg("nbytes"),
      "From now on malloc gives blocks of so many bytes (up to 32 MiB) and more back to the system as soon as they are "
      "freed. Whether the C library can do that.");
  py::class_<FileMapping>(
      m, "FileMapping", py::buffer_protocol(),
      "A file in this process's memory, in place for huge pages; unmapped when the object and every "
      "memoryview or tensor over it is gone.")
      .def(py::init([](int fd, uint64_t offset, size_t nbytes, bool is_shared) {
             return as_os_error([&] { return std::make_unique<FileMapping>(fd, offset, nbytes, is_shared); });
           }),
           py::arg("fd"), py::arg("offset"), py::arg("nbytes"), py::arg("is_shared"),
           "Maps so many bytes from an offset on, a multiple of the page size; others see what is written to it where "
           "it is shared. OSError.")
      .def_buffer([](FileMapping& self) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(self.data()), static_cast<py::ssize_t>(self.size()));
      });
  m.def("huge_page_bytes", &huge_page_bytes, "Size of a huge page; 0 where the system gives none.");
  m.def(
      "move_to_huge_pages", &move_to_huge_pages, py::call_guard<GilReleased>(), py::arg("begin"), py::arg("nbytes"),
      "Moves the whole huge pages of a range of addresses into huge pages, which copies it once; addresses and values "
      "stay. How many bytes are in huge pages then, of those that could be.");
}

}  // namespace gld
