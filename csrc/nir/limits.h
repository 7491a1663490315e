#pragma once
#include <cstddef>
#include <cstdint>

namespace spikeforge::nir {

// Limits for untrusted files. A file that exceeds one raises an error.
struct Limits {
  int depth = 64;                                // nesting depth of graphs, including the outermost
  std::uint64_t bytes = std::uint64_t{2} << 30;  // of all arrays and strings, in memory
  std::uint64_t nodes = std::uint64_t{1} << 20;  // groups and datasets of the file
  std::size_t string = std::size_t{1} << 16;     // bytes of a string or name
};

}  // namespace spikeforge::nir
