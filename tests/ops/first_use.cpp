#include "tests/ops/calls.h"

#include <latch>
#include <thread>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

// Forward and backward. Each thread leaves torch's own threads alone.
Tensors call_once(const std::string& neuron, unsigned seed) {
  const ThreadCount one(1);
  Call call = default_call(neuron, leaf(drive(neuron, {23, 3001}, at::kFloat, seed)));
  const Tensors results = run(call);
  const Tensor gradient = gradients(call, results, {noise({23, 3001}), Tensor(), Tensor()}).values.at(0);
  return {results[0].detach(), results[1].detach(), gradient};
}

}  // namespace

// ctest runs each file of these in a process of its own, so that this is the library's first use.
TEST_CASE("eight threads that use the library first, each another operator, get what one thread gets") {
  constexpr std::size_t n_threads = 8;
  std::vector<Tensors> together(n_threads);
  const auto name = [](std::size_t i) { return std::string(neuron_rows[i % std::size(neuron_rows)].name); };
  std::latch start(n_threads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n_threads; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      together[i] = call_once(name(i), unsigned(i));
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < n_threads; ++i) {
    INFO("thread " << i << ", " << name(i));
    REQUIRE(together[i].size() == 3);
    REQUIRE(same_bits(together[i], call_once(name(i), unsigned(i))));
  }
}

}  // namespace spikeforge::test
