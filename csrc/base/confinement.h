// What a process that runs a stranger's file gives up before it does, by the kernel's own means: Landlock (Linux 5.13)
// for files and connections, and a filter of system calls (seccomp).
#pragma once

#include "csrc/base/export.h"

#include <string>
#include <vector>

namespace spikeforge {

struct Confinement {
  bool files = false;  // nothing can be written, made, renamed or deleted but where it was allowed
  bool calls = false;  // no program can be started, no process made or reached, no socket opened, nothing typed into a
                       // terminal, and no file's permissions or attributes changed, wherever it is
};

// From here on, this thread, and those that it starts, can only write what is open already, and below `writable`:
// folders with all that is in them, and devices, which need not exist. Files can be read as before. Says what is in
// force: where the kernel has no Landlock, the filter serves for files too, unless something is writable, which it
// cannot tell apart. There is no way back. To be called before other threads are started: those keep what they have.
SPIKEFORGE_API Confinement confine(const std::vector<std::string>& writable = {});

}  // namespace spikeforge
