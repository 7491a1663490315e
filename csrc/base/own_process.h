#pragma once

#include "csrc/base/export.h"

#include <functional>
#include <string>

namespace spikeforge {

// Runs a function in a child process and returns its exit status, so that an untrusted file cannot crash the program.
// When the function ends, its standard error is printed without control characters; if it failed, starting with the
// last line that begins with "PROGRAM: ", since libraries print other lines. After a crash, "PROGRAM: CRASHED (signal
// NUMBER)" is printed, and the status is 1. The child ends with this process, and has no terminal to read from: it is
// in a separate session, and if standard input is a terminal, /dev/null replaces it.
SPIKEFORGE_API int in_own_process(const std::string& program, const std::string& crashed,
                                  const std::function<int()>& function);

}  // namespace spikeforge
