#include "tests/catch.h"

#include "csrc/base/published_map.h"

#include <array>
#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

namespace {

// Seven of eight keys have the same hash, so that look-ups probe entries of other keys.
struct FewHashes {
  std::size_t operator()(int key) const { return key % 8 == 0 ? static_cast<std::size_t>(key) : 3; }
};

using Published = spikeforge::PublishedMap<int, const std::string, FewHashes>;

}  // namespace

TEST_CASE("a published value is found, at every size of the table, and others are not") {
  Published map;
  std::vector<std::string> values(500);
  CHECK(map.find(0) == nullptr);
  for (int key = 0; key < 500; ++key) {
    CHECK(&map.insert(key, values[key]) == &values[key]);
    int wrong = 0;
    for (int other = 0; other < 500; ++other) wrong += map.find(other) != (other <= key ? &values[other] : nullptr);
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("the first value of a key stays") {
  Published map;
  const std::string first = "a", second = "b";
  map.insert(7, first);
  CHECK(&map.insert(7, second) == &first);
  CHECK(map.find(7) == &first);
}

TEST_CASE("readers find every value that was published before they looked, while others publish more") {
  constexpr int n_keys = 2000, n_writers = 2, n_readers = 2;
  Published map;
  const std::string value = "kernel";
  std::array<std::atomic<bool>, n_keys> published{};
  std::atomic<int> lost = 0;
  std::barrier start(n_writers + n_readers);
  std::vector<std::thread> threads;
  for (int writer = 0; writer < n_writers; ++writer)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int key = 0; key < n_keys; ++key) {
        map.insert(key, value);
        published[key] = true;
      }
    });
  for (int reader = 0; reader < n_readers; ++reader)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      while (!published[n_keys - 1])
        for (int key = 0; key < n_keys; key += 37) {
          const bool was_there = published[key];
          lost += was_there && map.find(key) != &value;
        }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(lost.load() == 0);
}
