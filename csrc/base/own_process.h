#pragma once

#include "csrc/base/export.h"

#include <functional>
#include <string>

namespace spikeforge {

// Runs a function in a process of its own and returns its exit status: no file of a stranger crashes the program. What
// the function prints to standard error comes at its end, where it fails from the last line on that begins with
// "PROGRAM: ", since libraries print others, and without control characters. Where it crashes, that is "PROGRAM:
// CRASHED (signal NUMBER)" and status 1. The process ends with this one, and has no terminal to read from: it is in a
// session of its own, and where standard input is a terminal it has /dev/null in its place.
SPIKEFORGE_API int in_own_process(const std::string& program, const std::string& crashed,
                                  const std::function<int()>& function);

}  // namespace spikeforge
