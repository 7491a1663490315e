// Evaluates a condition in a child process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace spikeforge::test {

// True if the condition is true in a forked child, which an alarm terminates. False if it crashes or throws.
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
