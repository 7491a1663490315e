#pragma once
#include <atomic>
#include <memory>

namespace spikeforge {

// Storage in an object for data of a component above: created by the first request, then read without a lock, and
// destroyed with the object. A slot has one type, which the component defines and the object does not use. Several
// threads may change the data at once: it synchronises itself.
class Slot {
 public:
  Slot() = default;
  ~Slot() { delete content_.load(std::memory_order_acquire); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // `make` returns a T, in place. If two threads come first, both create one, and one is kept.
  template <class T, class Make> T& get(const Make& make) const {
    if (Base* const there = content_.load(std::memory_order_acquire)) return static_cast<Content<T>*>(there)->value;
    auto made = std::make_unique<Content<T>>(make);
    Base* there = nullptr;
    if (content_.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
      return made.release()->value;
    return static_cast<Content<T>*>(there)->value;
  }

 private:
  struct Base {
    virtual ~Base() = default;
  };
  template <class T> struct Content : Base {
    template <class Make> explicit Content(const Make& make) : value(make()) {}
    T value;
  };

  mutable std::atomic<Base*> content_ = nullptr;
};

}  // namespace spikeforge
