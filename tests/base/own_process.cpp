#include "csrc/base/own_process.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

// Returns the standard error and the exit status of a function that runs in its own process.
std::pair<int, std::string> run(const std::function<int()>& function) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  const int status = in_own_process("tool", "the file crashed", function);
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  ::close(ends[0]);
  return {status, text};
}

}  // namespace

TEST_CASE("a crash is one line, without the output of libraries") {
  CHECK(run([] { return 0; }) == std::pair(0, std::string()));
  CHECK(run([] {
          std::fputs("noise\ntool: it is bad\x1b[2J\n", stderr);
          return 3;
        }) == std::pair(3, std::string("tool: it is bad\\x1b[2J\n")));
  CHECK(run([]() -> int {
          std::fputs("noise\n", stderr);
          ::raise(SIGKILL);
          return 0;
        }) == std::pair(1, std::string("tool: the file crashed (signal 9)\n")));
}

TEST_CASE("the process ends with the one that asked for it") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t asking = ::fork();
  if (asking == 0) {
    ::close(ends[0]);
    in_own_process("tool", "", [&]() -> int {
      while (::write(ends[1], "x", 1) == 1) ::usleep(1000);
      return 0;
    });
    ::_exit(0);
  }
  ::close(ends[1]);
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);  // the child is running
  ::kill(asking, SIGKILL);
  ::waitpid(asking, nullptr, 0);
  ssize_t got = 0;
  for (int i = 0; i < 10'000 && (got = ::read(ends[0], &byte, 1)) == 1; ++i) {
  }
  CHECK(got == 0);  // no process has the other end open
  ::close(ends[0]);
}

TEST_CASE("the process has no terminal, and reads from none") {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) {
    WARN("this machine has no terminals");
    return;
  }
  const int keyboard = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY), before = ::dup(STDIN_FILENO);
  REQUIRE(keyboard >= 0);
  ::dup2(keyboard, STDIN_FILENO);
  const auto [status, text] = run([] {
    char byte = 0;
    return ::isatty(STDIN_FILENO) == 0 && ::read(STDIN_FILENO, &byte, 1) == 0 && ::getsid(0) == ::getpid() ? 0 : 1;
  });
  ::dup2(before, STDIN_FILENO);
  for (const int file : {before, keyboard, terminal}) ::close(file);
  CHECK(status == 0);
}

TEST_CASE("data that arrives through a pipe can still be read") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::write(ends[1], "x", 1) == 1);
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  const int status = run([] {
                       char byte = 0;
                       return ::read(STDIN_FILENO, &byte, 1) == 1 && byte == 'x' ? 0 : 1;
                     }).first;
  ::dup2(before, STDIN_FILENO);
  for (const int file : {before, ends[0], ends[1]}) ::close(file);
  CHECK(status == 0);
}

}  // namespace spikeforge::test
