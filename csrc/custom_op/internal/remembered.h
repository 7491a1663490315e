// A cache of the results of a function of a call's shapes, dtypes and numbers: a function in Python costs more than
// many a kernel, and a network calls it with the same shapes all the time.
#pragma once

#include "csrc/base/fork_safe_mutex.h"
#include "csrc/custom_op/arguments.h"

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace spikeforge::custom_op {

// The values of a call on which such a function may depend.
class CallKey {
 public:
  // Returns false for a call that has no key: one with symbolic sizes, or with arguments of rarer types.
  bool describe(const Arguments& in);

  bool operator==(const CallKey& other) const { return words_ == other.words_; }
  std::size_t hash() const;

 private:
  bool add(const c10::IValue& value);
  bool add(const at::Tensor& t);
  void add(std::int64_t word) { words_.push_back(word); }

  c10::SmallVector<std::int64_t, 24> words_;
};

// At most `most` values; then it begins anew.
template <class T> class Remembered {
 public:
  template <class Make> T get(const Arguments& in, Make&& make) {
    constexpr std::size_t most = 1024;
    CallKey key;
    if (!key.describe(in)) return make();
    {
      const std::scoped_lock lock(mutex_);
      if (const auto at = values_.find(key); at != values_.end()) return at->second;
    }
    T value = make();  // without the lock: Python may wait for another thread
    const std::scoped_lock lock(mutex_);
    if (values_.size() >= most) values_.clear();
    values_.insert_or_assign(std::move(key), value);
    return value;
  }

 private:
  struct Hash {
    std::size_t operator()(const CallKey& key) const { return key.hash(); }
  };
  ForkSafeMutex mutex_;
  std::unordered_map<CallKey, T, Hash> values_;
};

}  // namespace spikeforge::custom_op
