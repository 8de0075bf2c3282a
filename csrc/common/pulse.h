#pragma once

#include <chrono>

namespace gld {

// Writes the byte `mark` to a pipe now and every `interval`, from a thread of its own that needs nothing of the process
// but to be scheduled: no lock, no interpreter. It ends when the other end of the pipe is closed, or with the process.
//
// `descriptor` is blocking, and stays open for as long: the thread is never joined.
void start_pulse(int descriptor, std::chrono::milliseconds interval, char mark);

}  // namespace gld
