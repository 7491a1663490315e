// Undoes the filters of HDF5 chunks. libhdf5 is not used, because its inflate allocates the size that a file requests.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace spikeforge::nir {

// Numbers of the HDF5 filter registry.
enum FilterId : int { deflate = 1, shuffle = 2, fletcher32 = 3, szip = 4, lzf = 32000 };

struct Filter {
  int id;
  unsigned element_size;  // for shuffle
};

// Returns "" if this library supports the filter, else the filter's name.
std::string unknown_filter(int id);

// Undoes the filters of one chunk, last first, except those whose bit is set in skipped. input is overwritten; output
// has the size of the unfiltered chunk, and is filled exactly. Returns "" or an error message.
std::string unfilter(std::span<const Filter> filters, unsigned skipped, std::vector<std::byte>& input,
                     std::span<std::byte> output);

}  // namespace spikeforge::nir
