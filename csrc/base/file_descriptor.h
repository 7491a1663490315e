#pragma once
#include <utility>

#include <unistd.h>

namespace spikeforge {

// Closes itself; negative where the file could not be opened.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

  // Returns false if the system reports only now that an earlier write failed.
  bool close() { return number_ < 0 || ::close(release()) == 0; }

 private:
  int number_;
};

}  // namespace spikeforge
