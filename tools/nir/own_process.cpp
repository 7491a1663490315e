// examples/deploy has one like it: of spikeforge, that program takes the library alone.
#include "command.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

namespace spikeforge::nir {

int in_own_process(const std::string& files, const std::function<int()>& function) {
  int ends[2];
  if (::pipe(ends) != 0) return function();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return function();
  }
  if (child == 0) {
    ::close(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    const int status = function();
    std::fflush(nullptr);
    ::_exit(status);
  }
  ::close(ends[1]);

  // Its standard error is held back: a C library that finds memory damaged prints lines of its own.
  std::string errors;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    errors.append(buffer.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) {
    fmt::print(stderr, "{}", errors);
    return WEXITSTATUS(status);
  }
  fmt::print(stderr, "spikeforge-nir: {}: reading it crashed (signal {})\n", files, WTERMSIG(status));
  return 1;
}

}  // namespace spikeforge::nir
