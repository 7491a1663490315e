#pragma once
#include "csrc/nir/node.h"

#include <string>

namespace spikeforge::nir {

struct WriteOptions {
  int compression = 0;  // deflate, 1 to 9; 0: none. Small arrays would get larger and are not compressed.
};

// Writes a graph in the newest layout, for every program that reads NIR. Absent shapes that other programs need are
// filled in. The file is written under another name, and replaces an old one at the end: if anything fails, Error is
// thrown and the old file is unchanged.
SPIKEFORGE_API void write(Graph graph, const std::string& file, const WriteOptions& options = {});

}  // namespace spikeforge::nir
