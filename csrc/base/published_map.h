#pragma once
#include "csrc/base/fork_safe_mutex.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spikeforge {

// A map that only grows, and that is read without a lock: one atomic load, and a probe of an open-addressing
// table. Values are stored elsewhere.
//
// Writers, one at a time, put an entry into a free slot, or publish a table of twice the size. Neither entries nor old
// tables are freed before the map is destroyed: a reader may still use them, and detecting that no reader does would
// cost every reader a write. All old tables together are smaller than the newest.
template <class Key, class Value, class Hash> class PublishedMap {
 public:
  PublishedMap() = default;
  PublishedMap(const PublishedMap&) = delete;
  PublishedMap& operator=(const PublishedMap&) = delete;

  // Returns null if the map does not have the key.
  Value* find(const Key& key) const {
    const Table* table = newest_.load(std::memory_order_acquire);
    return table ? table->find(key, Hash()(key)) : nullptr;
  }

  // Inserts a value for the key, unless another thread already did. Returns the value of the key.
  Value& insert(const Key& key, Value& value) {
    const std::size_t hash = Hash()(key);
    const std::scoped_lock lock(writing_);
    if (tables_.empty()) add_table(16);
    if (Value* const there = tables_.back()->find(key, hash)) return *there;
    // Half of the slots stay free, so that probes are short and terminate.
    if (2 * (entries_.size() + 1) > tables_.back()->size()) add_table(2 * tables_.back()->size());
    entries_.push_back(std::make_unique<Entry>(Entry{hash, key, &value}));
    tables_.back()->put(*entries_.back());
    return value;
  }

 private:
  struct Entry {
    std::size_t hash;
    Key key;
    Value* value;
  };

  class Table {
   public:
    explicit Table(std::size_t power_of_two) : slots_(power_of_two) {}

    std::size_t size() const { return slots_.size(); }

    Value* find(const Key& key, std::size_t hash) const {
      for (std::size_t i = hash;; ++i) {
        const Entry* const entry = slots_[i & (slots_.size() - 1)].load(std::memory_order_acquire);
        if (entry == nullptr) return nullptr;
        if (entry->hash == hash && entry->key == key) return entry->value;
      }
    }

    void put(const Entry& entry) {
      std::size_t i = entry.hash;
      while (slot(i).load(std::memory_order_relaxed) != nullptr) ++i;
      slot(i).store(&entry, std::memory_order_release);
    }

   private:
    std::atomic<const Entry*>& slot(std::size_t i) { return slots_[i & (slots_.size() - 1)]; }

    std::vector<std::atomic<const Entry*>> slots_;
  };

  void add_table(std::size_t size) {
    auto table = std::make_unique<Table>(size);
    for (const auto& entry : entries_) table->put(*entry);
    newest_.store(table.get(), std::memory_order_release);
    tables_.push_back(std::move(table));
  }

  std::atomic<const Table*> newest_ = nullptr;
  ForkSafeMutex writing_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace spikeforge
