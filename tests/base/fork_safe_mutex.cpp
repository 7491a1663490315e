#include "tests/base/child.h"
#include "tests/catch.h"

#include "csrc/base/fork_safe_mutex.h"

#include <atomic>
#include <memory>
#include <thread>

using spikeforge::ForkSafeMutex;
using spikeforge::test::holds_in_child;

TEST_CASE("mutexes that another thread holds for a moment, in any order, are free in a forked child") {
  const auto first = std::make_unique<ForkSafeMutex>(), second = std::make_unique<ForkSafeMutex>();
  std::atomic<bool> is_held = false, is_over = false;
  std::thread other([&] {
    for (bool turn = false; !is_over; turn = !turn, std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::scoped_lock lock(turn ? *first : *second);
      std::this_thread::yield();
      const std::scoped_lock more(turn ? *second : *first);
      const ForkSafeMutex made_meanwhile;
      is_held = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  while (!is_held) std::this_thread::yield();
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    failed += !holds_in_child([&] {
      const std::scoped_lock all(*first, *second);
      const ForkSafeMutex made;
      return true;
    });
    is_held = false;
    while (!is_held) std::this_thread::yield();  // the parent's mutexes are unlocked again
  }
  is_over = true;
  other.join();
  CHECK(failed == 0);
}
