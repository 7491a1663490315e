// TorchScript files of strangers. A file is a program: torch runs parts of it while it loads it, trusts the sizes that
// it claims, and has operators that write files.
//
//   torch::jit::Module net = spikeforge::load_screened("net.pt", at::kCPU);
//
// The file is read once. What was looked through is what is loaded.
#pragma once

#include "csrc/base/export.h"

#include <c10/core/Device.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace spikeforge {

// A file that is refused. what() is one line, "FILE: REASON", without control characters.
struct SPIKEFORGE_API ScreeningError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// torch::jit::load, but throws ScreeningError, before anything of the file runs, unless
//   - it is a plain file, and a zip archive from its first byte to its last, with one directory, records of the names
//     that torch writes, of which source alone is packed, and right checksums, which torch does not compare,
//   - its source calls no operators but those of torch that compute (csrc/torchscript/operators.def lists them), those
//     of spikeforge that take or give tensors, and `operators` ("aten::lstm", "mylibrary::op"), and computes no default
//     values,
//   - its pickles hold what torch writes for a module, and every tensor lies within the bytes that are stored for it;
// and, once it is compiled and before any of it is called, unless
//   - its operators are still these, and none of spikeforge's is told to trust the numbers of a matrix,
//   - no value is cast to another's class, or to another list, dictionary or tuple,
//   - its calls and its types are at most 200 deep,
//   - every attribute is what its class declares.
// `device`: where its tensors go. It is compiled on a thread with the stack that its source may take. Memory: about
// three times the file's size, and what its constants are computed to. Throws c10::Error where torch refuses the file.
SPIKEFORGE_API torch::jit::Module load_screened(const std::string& file, c10::Device device = c10::kCPU,
                                                const std::vector<std::string>& operators = {});

// The checksums and the form of an archive alone, of any records, as torch::inductor packages (.pt2) are. Throws
// ScreeningError. Whoever loads the file afterwards opens it again.
SPIKEFORGE_API void check_archive(const std::string& file);

}  // namespace spikeforge
