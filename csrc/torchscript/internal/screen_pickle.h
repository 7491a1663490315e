// The pickles of a TorchScript file, before torch's unpickler sees them: it believes what they say of sizes, calls what
// they name, and takes numbers for classes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace spikeforge::torchscript {

// Bytes of the storage of a name; nothing where there is none.
using SizeOfStorage = std::function<std::optional<std::uint64_t>(const std::string&)>;

enum class Holds {
  module,    // data.pkl
  constants  // constants.pkl: a tuple of tensors and text
};

// Throws ScreeningError unless the pickle is made of the instructions that torch writes, in the form in which it writes
// them, calls nothing but what rebuilds tensors, lists and dictionaries, and has no tensor beyond its storage.
void screen_pickle(const std::string& pickle, Holds holds, const SizeOfStorage& size_of_storage);

}  // namespace spikeforge::torchscript
