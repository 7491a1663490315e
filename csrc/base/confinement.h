// The rights that a process gives up before it runs an untrusted file, enforced by the kernel: Landlock (Linux 5.13)
// for files and connections, and a filter of system calls (seccomp).
#pragma once

#include "csrc/base/export.h"

#include <string>
#include <vector>

namespace spikeforge {

struct Confinement {
  bool files = false;  // files can be written, created, renamed and deleted only in allowed places
  bool calls = false;  // no program can be started, no process created or reached, no socket opened, no input sent to a
                       // terminal, and no file's permissions or attributes changed, in any folder
};

// Restricts this thread, and the threads that it starts: afterwards they can write only to files that are already open,
// and to those in `writable`: folders with their contents, and devices, which need not exist. Reading files is not
// restricted. Returns the restrictions in force: if the kernel has no Landlock, the filter protects files too, unless
// `writable` has entries, which it cannot distinguish. The restrictions cannot be removed. Call it before other threads
// are started: existing threads keep their rights.
SPIKEFORGE_API Confinement confine(const std::vector<std::string>& writable = {});

}  // namespace spikeforge
