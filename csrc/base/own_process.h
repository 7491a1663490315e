#pragma once

#include "csrc/base/export.h"

#include <functional>
#include <string>

namespace spikeforge {

// Runs a function in a child process and returns its exit status, so that an untrusted file cannot crash the program.
// The function's standard error is printed at its end, without control characters; if it fails, from the last line on
// that begins with "PROGRAM: ", since libraries print other lines. After a crash it is "PROGRAM: CRASHED (signal
// NUMBER)" and the status is 1. The child ends with this process, and has no terminal to read from: it is in its own
// session, and if standard input is a terminal it is replaced by /dev/null.
SPIKEFORGE_API int in_own_process(const std::string& program, const std::string& crashed,
                                  const std::function<int()>& function);

}  // namespace spikeforge
