// A test runner that fits on a screen.
//
// TEST("what holds") { ... } registers a test; CHECK and friends end it with the place and what was found.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace gld::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Tests = std::vector<std::pair<std::string, std::function<void()>>>;
inline Tests& all_tests() {
  static Tests tests;
  return tests;
}
inline bool register_test(const char* name, std::function<void()> body) {
  all_tests().emplace_back(name, std::move(body));
  return true;
}

template <typename Actual, typename Expected>
void check_equal(const Actual& actual, const Expected& expected, const char* what, const char* file, int line) {
  if (!(actual == static_cast<Actual>(expected)))
    throw Failure(message(file, ":", line, ": expected ", what, " == ", expected, ", got ", actual));
}

}  // namespace gld::test

#define GLD_JOIN_(a, b) a##b
#define GLD_JOIN(a, b) GLD_JOIN_(a, b)
#define TEST(name)                                                                                               \
  static void GLD_JOIN(test_, __LINE__)();                                                                       \
  static const bool GLD_JOIN(registered_, __LINE__) = gld::test::register_test(name, GLD_JOIN(test_, __LINE__)); \
  static void GLD_JOIN(test_, __LINE__)()

#define CHECK(condition)                                                                                         \
  do {                                                                                                           \
    if (!(condition)) throw gld::test::Failure(gld::message(__FILE__, ":", __LINE__, ": expected " #condition)); \
  } while (false)
#define CHECK_EQUAL(actual, expected) gld::test::check_equal(actual, expected, #actual, __FILE__, __LINE__)
#define CHECK_THROWS(Type, expression)           \
  do {                                           \
    bool thrown = false;                         \
    try {                                        \
      (void)(expression);                        \
    } catch (const Type&) {                      \
      thrown = true;                             \
    }                                            \
    CHECK(thrown && #Type " from " #expression); \
  } while (false)
