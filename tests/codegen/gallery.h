// The neurons of examples/neurons, by name.
#pragma once

#include "csrc/graph/text.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace spikeforge::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// SPIKEFORGE_TEST_NEURONS is their folder.
inline std::map<std::string, std::string> gallery() {
  std::map<std::string, std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(SPIKEFORGE_TEST_NEURONS))
    if (entry.path().extension() == ".neuron") texts[entry.path().stem().string()] = read_file(entry.path());
  return texts;
}

}  // namespace spikeforge::test
