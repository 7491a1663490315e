// Which operators a TorchScript file calls, looked up in its source before any of it runs: torch executes parts of a
// file while it loads it, and among torch's operators are some that write files.
#pragma once

#include "archive.h"

// Throws UserError for operators of other libraries than torch's own (aten, prim) and spikeforge, and for those of
// torch that read or write files.
void screen(const std::string& path, const Archive& archive);
