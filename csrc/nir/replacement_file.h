#pragma once
#include "csrc/base/export.h"

#include <string>

namespace spikeforge::nir {

// A new file beside the one it is to replace. Unless it does, it is deleted.
class SPIKEFORGE_API ReplacementFile {
 public:
  // Throws std::runtime_error, as does everything here.
  explicit ReplacementFile(const std::string& target);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  const std::string& path() const { return path_; }  // it exists and is empty

  // Once it is written and closed: it reaches the disk, then takes the target's name.
  void replace();

 private:
  std::string target_, path_;
};

}  // namespace spikeforge::nir
