#include "own_process.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

namespace {

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

// Of several lines the program's own: torch prints others.
std::string reason(const std::string& errors, const std::string& name) {
  const std::size_t start = errors.rfind(name + ": ");
  return start == std::string::npos ? errors : errors.substr(start);
}

}  // namespace

int in_own_process(const std::string& name, const std::function<int()>& function) {
  int ends[2];
  if (::pipe(ends) != 0) return function();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    const int status = function();
    std::fflush(nullptr);
    ::_exit(status);  // without what torch does at the end
  }
  ::close(ends[1]);
  const std::string errors = child < 0 ? "" : read_all(ends[0]);
  ::close(ends[0]);
  if (child < 0) return function();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) {
    fmt::print(stderr, "{}", WEXITSTATUS(status) == 0 ? errors : reason(errors, name));
    return WEXITSTATUS(status);
  }
  fmt::print(stderr, "{}: the network crashed (signal {})\n", name, WTERMSIG(status));
  return 1;
}
