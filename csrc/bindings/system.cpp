#include <string>

#include "bindings/module.h"
#include "bindings/os_error.h"
#include "channel/memory_file.h"
#include "channel/process_id.h"
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
}

}  // namespace gld
