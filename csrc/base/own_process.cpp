#include "csrc/base/own_process.h"
#include "csrc/base/printable.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spikeforge {
namespace {

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    constexpr std::size_t most = 1 << 20;  // the rest is read, so that the process does not wait, and dropped
    if (text.size() < most) text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::string reason(const std::string& errors, const std::string& program) {
  const std::size_t start = errors.rfind(program + ": ");
  return start == std::string::npos ? errors : errors.substr(start);
}

// Makes the child end with its parent. The parent may have ended before this call.
bool end_with(pid_t parent) { return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent; }

// Leaves the terminal of the user who started the program: text written into its input would be a command.
void leave_terminal() {
  ::setsid();
  std::signal(SIGHUP, SIG_IGN);  // from a terminal that the process opens as a file
  if (::isatty(STDIN_FILENO) == 0) return;
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0) return void(::close(STDIN_FILENO));
  ::dup2(nothing, STDIN_FILENO);
  ::close(nothing);
}

}  // namespace

int in_own_process(const std::string& program, const std::string& crashed, const std::function<int()>& function) {
  int ends[2];
  if (::pipe(ends) != 0) return function();
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    if (!end_with(parent)) ::_exit(1);
    leave_terminal();
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    const int status = function();
    std::fflush(nullptr);
    ::_exit(status);  // without the exit handlers of libraries
  }
  ::close(ends[1]);
  const std::string errors = child < 0 ? "" : read_all(ends[0]);
  ::close(ends[0]);
  if (child < 0) return function();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) {
    std::fprintf(stderr, "%s: %s (signal %d)\n", program.c_str(), printable(crashed).c_str(), WTERMSIG(status));
    return 1;
  }
  const std::string shown = WEXITSTATUS(status) == 0 ? errors : reason(errors, program);
  std::fputs(printable(shown, Lines::several).c_str(), stderr);
  return WEXITSTATUS(status);
}

}  // namespace spikeforge
