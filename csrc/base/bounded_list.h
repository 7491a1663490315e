#pragma once
#include <array>
#include <cstddef>
#include <span>

namespace spikeforge {

// A list of up to `most` elements without allocation, for descriptions in hot calls. Unused elements cost nothing.
template <class T, std::size_t most> class BoundedList {
 public:
  BoundedList() {}  // elements after size() are not written  NOLINT(modernize-use-equals-default)
  BoundedList(const BoundedList& other) { *this = other; }
  BoundedList& operator=(const BoundedList& other) {
    size_ = other.size_;
    for (std::size_t i = 0; i < size_; ++i) items_[i] = other.items_[i];
    return *this;
  }

  // Throws std::out_of_range if the list is full.
  void push_back(const T& item) { items_.at(size_++) = item; }

  std::size_t size() const { return size_; }
  const T* data() const { return items_.data(); }
  std::span<T> items() { return {items_.data(), size_}; }
  std::span<const T> items() const { return {items_.data(), size_}; }

  bool operator==(const BoundedList& other) const {
    if (size_ != other.size_) return false;
    for (std::size_t i = 0; i < size_; ++i)
      if (!(items_[i] == other.items_[i])) return false;
    return true;
  }

 private:
  std::size_t size_ = 0;
  std::array<T, most> items_;
};

}  // namespace spikeforge
