// What a TorchScript file's source calls, before any of it is compiled.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace spikeforge::torchscript {

class AllowedOperators {
 public:
  // Beyond those of operators.def and spikeforge's own: "aten::lstm".
  explicit AllowedOperators(std::vector<std::string> beyond) : beyond_(std::move(beyond)) {}

  // "aten", "add_"
  bool has(const std::string& library, const std::string& name) const;

 private:
  std::vector<std::string> beyond_;
};

struct Definitions {
  // How many the compiler goes down where each definition waits for the next: of a definition, those of its deepest
  // expression and statement, and one.
  std::size_t levels = 0;
  std::vector<std::string> classes = {};  // their names
};

// Throws ScreeningError. The source is parsed by torch's own parser, so that what it sees is what will be compiled.
Definitions screen_source(const std::string& source, const AllowedOperators& allowed);

}  // namespace spikeforge::torchscript
