#include "csrc/nir/write.h"
#include "csrc/nir/error.h"
#include "csrc/nir/hdf5_write.h"
#include "csrc/nir/interpret.h"
#include "csrc/nir/replacement_file.h"
#include "csrc/nir/shapes.h"
#include "csrc/nir/validate.h"

#include <fmt/format.h>

#include <stdexcept>

namespace spikeforge::nir {

void write(Graph graph, const std::string& file, const WriteOptions& options) {
  try {
    if (options.compression < 0 || options.compression > 9)
      throw std::runtime_error(fmt::format("compression must be from 0 to 9, but is {}", options.compression));
    validate(graph);
    fill_in_shapes(graph);
    ReplacementFile replacement(file);
    write_tree(group_of(graph), replacement.path(), options.compression);
    replacement.replace();
  } catch (const Error& error) {
    throw error.in_file(file);
  } catch (const std::runtime_error& error) {
    throw Error(file, "", "", error.what());
  }
}

}  // namespace spikeforge::nir
