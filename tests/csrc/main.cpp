// Runs every test, or those whose names contain the first argument. Exit status 1 where one failed.
#include <cstdio>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int ran = 0, failed = 0;
  for (const auto& [name, body] : gld::test::all_tests()) {
    if (name.find(wanted) == std::string::npos) continue;
    ++ran;
    try {
      body();
      std::printf("ok      %s\n", name.c_str());
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED  %s\n        %s\n", name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed > 0 || ran == 0 ? 1 : 0;
}
