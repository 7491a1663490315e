// The zip file that a saved network is, TorchScript and AOTInductor package alike. torch reads such files without
// looking at their checksums: a flipped bit would be another weight, or another instruction.
#pragma once

#include <map>
#include <string>
#include <vector>

struct Entry {
  std::string name;
  std::size_t offset = 0;  // of its local header
  std::size_t stored = 0;  // bytes in the file
  std::size_t size = 0;    // bytes when unpacked
  std::uint32_t checksum = 0;
  int method = 0;  // 0: as it is, 8: deflate
};

class Archive {
 public:
  // Throws UserError unless every entry is whole.
  explicit Archive(const std::string& path);

  const std::vector<Entry>& entries() const { return entries_; }
  // An entry's bytes, at most `limit`.
  std::string read(const Entry& entry, std::size_t limit) const;

 private:
  std::string path_;
  std::string bytes_;
  std::vector<Entry> entries_;
};
