// The zip file that a TorchScript file is, in memory. torch's own reader says what is in it; that there is nothing
// else, and that its checksums are right, is compared with the directory, which is read here once more (APPNOTE.TXT of
// PKWARE, sections 4.3 and 4.5.3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace caffe2::serialize {
class PyTorchStreamReader;
class ReadAdapterInterface;
}  // namespace caffe2::serialize

namespace spikeforge::torchscript {

// Throws ScreeningError, without the file's name.
[[noreturn]] void refuse(const std::string& reason);

struct Record {
  std::string name;  // below the folder that all are in
  std::uint64_t size;
  bool is_packed;  // deflated: it takes more than it has in the file
};

class Archive {
 public:
  // Throws ScreeningError unless it is whole.
  explicit Archive(const std::string& file);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  const std::vector<Record>& records() const { return records_; }
  // Bytes of a record; nothing where there is none.
  std::optional<std::uint64_t> size_of(const std::string& name) const;
  std::string read(const std::string& name) const;
  // Of the same bytes.
  std::shared_ptr<caffe2::serialize::ReadAdapterInterface> adapter() const { return adapter_; }

 private:
  std::shared_ptr<caffe2::serialize::ReadAdapterInterface> adapter_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::vector<Record> records_;
  std::unordered_map<std::string, std::uint64_t> sizes_;
};

}  // namespace spikeforge::torchscript
