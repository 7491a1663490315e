#pragma once

#include "csrc/base/fork_safe_mutex.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace spikeforge::ops {

// A small cache of texts that are derived from a cell, by key. It is bounded because keys may come from untrusted
// files.
template <class Key> class DerivedTexts {
 public:
  template <class Make> std::string get(const Key& key, Make&& make) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = texts_.find(key); found != texts_.end()) return found->second;
    if (texts_.size() == most) texts_.clear();
    return texts_.emplace(key, std::forward<Make>(make)()).first->second;
  }

 private:
  static constexpr std::size_t most = 32;
  ForkSafeMutex mutex_;
  std::map<Key, std::string> texts_;
};

}  // namespace spikeforge::ops
