#pragma once
#include "csrc/base/fork_safe_mutex.h"

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <unistd.h>

namespace spikeforge {

// A map whose values are created by the first caller that requests the key; other callers of that key wait for it, and
// callers of other keys do not. An exception is passed to all waiting callers and leaves no entry: the next call tries
// again. A child of fork() creates a value itself if a thread of its parent was creating it.
template <class Key, class Value, class Hash> class OnceMap {
 public:
  using Pointer = std::shared_ptr<const Value>;
  struct Found {
    Pointer value;
    bool was_there;
  };

  template <class Make> Found get(const Key& key, Make&& make) {
    std::unique_lock lock(mutex_);
    if (const auto at = values_.find(key); at != values_.end() && at->second.is_coming()) {
      const std::shared_future<Pointer> value = at->second.value;
      lock.unlock();
      return {value.get(), true};
    }
    std::promise<Pointer> promise;
    values_.insert_or_assign(key, Entry{promise.get_future().share()});
    lock.unlock();

    try {
      auto value = std::make_shared<const Value>(make());
      promise.set_value(value);
      return {value, false};
    } catch (...) {
      lock.lock();
      values_.erase(key);
      lock.unlock();
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  void replace(const Key& key, Value value) {
    std::promise<Pointer> promise;
    promise.set_value(std::make_shared<const Value>(std::move(value)));
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(key, Entry{promise.get_future().share()});
  }

 private:
  struct Entry {
    std::shared_future<Pointer> value;
    pid_t process = ::getpid();

    bool is_coming() const {
      return value.wait_for(std::chrono::seconds(0)) == std::future_status::ready || process == ::getpid();
    }
  };

  ForkSafeMutex mutex_;
  std::unordered_map<Key, Entry, Hash> values_;
};

}  // namespace spikeforge
