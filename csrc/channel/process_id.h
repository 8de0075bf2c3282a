// Names a process so that a later one with the same pid is not taken for it.
#pragma once
#include <cstdint>

namespace gld {

// Pid and start time in one word; 0 names no process.
uint64_t current_process_id();
// False where the process has ended (a zombie has). Processes of this pid namespace only.
bool process_is_alive(uint64_t process_id);
int pid_of(uint64_t process_id);

// A descriptor that can be read once the process has ended. std::system_error: ESRCH where it is no more, ENOSYS or
// EPERM where the kernel (before 5.3) or a sandbox has no such descriptors. Called directly, see memory_file.h.
int open_process(int pid);
// Kills (SIGKILL) what open_process gave a descriptor of; std::system_error: ESRCH where it has ended.
void kill_process(int fd);

}  // namespace gld
