#pragma once
#include "csrc/base/export.h"

#include <string>

namespace spikeforge::nir {

// A new file in the folder of the file that it will replace. It is deleted unless replace() succeeds.
class SPIKEFORGE_API ReplacementFile {
 public:
  // All functions of this class throw std::runtime_error.
  explicit ReplacementFile(const std::string& target);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  const std::string& path() const { return path_; }  // initially an empty file

  // Flushes the written and closed file to the disk, then renames it to the target.
  void replace();

 private:
  std::string target_, path_;
};

}  // namespace spikeforge::nir
