#pragma once
#include <chrono>
#include <mutex>
#include <thread>

#include <pthread.h>

namespace spikeforge {

// A mutex that is free in a child of fork(), which has only the thread that called it: fork() waits until no other
// thread holds one. It stops waiting after 10 seconds, since the holder may be waiting for the forking thread.
class ForkSafeMutex {
 public:
  ForkSafeMutex() : previous_(&list().head) {
    const std::scoped_lock lock(list().mutex);
    next_ = list().head;
    if (next_) next_->previous_ = &next_;
    list().head = this;
  }
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;
  ~ForkSafeMutex() {
    const std::scoped_lock lock(list().mutex);
    *previous_ = next_;
    if (next_) next_->previous_ = previous_;
  }

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // All mutexes of one library.
  struct List {
    std::mutex mutex;
    ForkSafeMutex* head = nullptr;
  };

  static List& list() {
    static List& list = *[] {
      ::pthread_atfork(lock_all, unlock_all, unlock_all);
      return new List;
    }();
    return list;
  }

  static void unlock_up_to(const ForkSafeMutex* end) {
    for (ForkSafeMutex* each = list().head; each != end; each = each->next_) each->unlock();
  }

  // Locks all mutexes. It never waits for one mutex while it holds another, since their order is unknown.
  static void lock_all() {
    constexpr auto longest = std::chrono::seconds(10);
    constexpr auto pause = std::chrono::microseconds(100);
    const auto end = std::chrono::steady_clock::now() + longest;
    do {
      list().mutex.lock();
      ForkSafeMutex* each = list().head;
      while (each && each->try_lock()) each = each->next_;
      is_locked_ = each == nullptr;
      if (is_locked_) return;
      unlock_up_to(each);
      list().mutex.unlock();
      std::this_thread::sleep_for(pause);
    } while (std::chrono::steady_clock::now() < end);
  }

  static void unlock_all() {
    if (!is_locked_) return;
    is_locked_ = false;
    unlock_up_to(nullptr);
    list().mutex.unlock();
  }

  static inline thread_local bool is_locked_ = false;  // the list and all its mutexes, for a fork of this thread
  std::mutex mutex_;
  ForkSafeMutex** previous_;
  ForkSafeMutex* next_ = nullptr;
};

}  // namespace spikeforge
