// How an exception of the core reaches who asked: as graphlearn_dist/rpc/wire/failures.py packs it.
#pragma once
#include <exception>
#include <string>

namespace gld::rpc {

// The exception that is being handled, as the list that a frame of kind kError has for its head. The core's exceptions
// become their namesakes in graphlearn_dist.errors, std::bad_alloc MemoryError, all others RuntimeError.
std::string pack_failure(const std::exception_ptr& error);

// An exception of graphlearn_dist.errors, by name, that has a text alone.
std::string pack_error(const char* class_name, const std::string& text);

// OverloadedError of this side: who asked may try again after so many seconds.
std::string pack_overloaded(const std::string& own_name, double retry_after_s);

}  // namespace gld::rpc
