// A statement evaluated in a process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace spikeforge::test {

// True if it holds in a forked child, which an alarm ends. What crashes or throws does not hold.
template <class Statement> bool holds_in_child(Statement&& statement) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    try {
      ::_exit(statement() ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace spikeforge::test
