// Names a process so that a later one with the same pid is not taken for it.
#pragma once
#include <cstdint>

namespace gld {

// Pid and start time in one word; 0 names no process.
uint64_t current_process_id();
// False where the process has ended (a zombie has). Processes of this pid namespace only.
bool process_is_alive(uint64_t process_id);
int pid_of(uint64_t process_id);

}  // namespace gld
