#include "tests/base/child.h"
#include "tests/catch.h"

#include "csrc/base/once_map.h"

#include <atomic>
#include <barrier>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using Map = spikeforge::OnceMap<int, std::string, std::hash<int>>;

namespace {

// A latch with a timeout, so that a concurrency test fails instead of hanging.
bool waits_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done();
}

}  // namespace

TEST_CASE("threads that want one value make it once") {
  Map map;
  std::atomic<int> made = 0, there = 0;
  std::barrier start(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      const auto found = map.get(1, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++made;
        return std::string("kernel");
      });
      there += found.was_there && *found.value == "kernel";
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(made.load() == 1);
  CHECK(there.load() == 7);
}

TEST_CASE("different values are made at the same time") {
  Map map;
  std::atomic<int> begun = 0, met = 0;
  const auto make = [&] {
    ++begun;
    met += waits_until([&] { return begun == 2; });
    return std::string();
  };
  std::thread other([&] { map.get(1, make); });
  map.get(2, make);
  other.join();
  CHECK(met.load() == 2);
}

TEST_CASE("a failure reaches every thread that waits, and the next call tries again") {
  Map map;
  std::atomic<int> failed = 0, waiting = 0;
  const auto get = [&](const std::function<std::string()>& make) {
    ++waiting;
    try {
      map.get(1, make);
    } catch (const std::runtime_error& error) {
      failed += std::string(error.what()) == "no kernel";
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      get([&]() -> std::string {
        waits_until([&] { return waiting == 4; });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        throw std::runtime_error("no kernel");
      });
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(failed.load() == 4);
  CHECK(*map.get(1, [] { return std::string("second try"); }).value == "second try");
}

TEST_CASE("a forked child makes the value that a thread of its parent is making, and has those that were made") {
  Map map;
  map.get(2, [] { return std::string("made"); });
  std::atomic<bool> has_begun = false, may_end = false;
  std::thread other([&] {
    map.get(1, [&] {
      has_begun = true;
      waits_until([&] { return may_end.load(); });
      return std::string("parent's");
    });
  });
  REQUIRE(waits_until([&] { return has_begun.load(); }));
  const bool has_both = spikeforge::test::holds_in_child([&] {
    const bool makes = *map.get(1, [] { return std::string("child's"); }).value == "child's";
    const auto found = map.get(2, [] { return std::string("made again"); });
    return makes && found.was_there && *found.value == "made";
  });
  may_end = true;
  other.join();
  CHECK(has_both);
  CHECK(*map.get(1, [] { return std::string("never made"); }).value == "parent's");
}

TEST_CASE("a value that is replaced is found, and the old one lives as long as it is held") {
  Map map;
  const auto old = map.get(1, [] { return std::string("old"); }).value;
  map.replace(1, "new");
  CHECK(*map.get(1, [] { return std::string("never made"); }).value == "new");
  CHECK(*old == "old");
}
