#pragma once
#include "csrc/nir/node.h"

#include <string>

namespace spikeforge::nir {

struct WriteOptions {
  int compression = 0;  // deflate, 1 to 9; 0: none. Small arrays are never compressed, which would make them larger.
};

// In the newest layout, for every program that reads NIR. Shapes that other programs need and that are absent are
// filled in. The file is written under another name and takes the place of an old one at the end: if anything fails,
// which throws Error, the old file is as it was.
SPIKEFORGE_API void write(Graph graph, const std::string& file, const WriteOptions& options = {});

}  // namespace spikeforge::nir
