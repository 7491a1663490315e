#pragma once
#include <cstddef>
#include <cstdint>

namespace spikeforge::nir {

// Limits for untrusted files. A file that exceeds one is refused.
struct Limits {
  int depth = 64;                                // graphs within graphs, the outermost included
  std::uint64_t bytes = std::uint64_t{2} << 30;  // of all arrays and strings, as they are in memory
  std::uint64_t nodes = std::uint64_t{1} << 20;  // groups and datasets of the file
  std::size_t string = std::size_t{1} << 16;     // bytes of one string or name
};

}  // namespace spikeforge::nir
