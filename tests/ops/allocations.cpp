#include "tests/ops/calls.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdlib>
#include <new>

#include "tests/catch.h"

// Every operator new of this program and of the libraries it loads comes here.
namespace {
thread_local long allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace spikeforge::test {
namespace {

template <class Body>
long allocations_of(Body&& body) {
  for (int i = 0; i < 3; ++i) body();  // the first calls fill tables and caches
  const long before = allocations;
  body();
  return allocations - before;
}

using Body = void (*)(const Tensor& x, const Tensor& state);

// plif is not among them: its w goes through the dispatcher in a list, which is one more allocation.
constexpr struct {
  const char* neuron;
  bool two_states;
  Body call;
} hot_calls[] = {
    {"integrate_and_fire", false, [](const Tensor& x, const Tensor& state) { integrate_and_fire(x, state); }},
    {"lif", false, [](const Tensor& x, const Tensor& state) { lif(x, state); }},
    {"qif", false, [](const Tensor& x, const Tensor& state) { qif(x, state); }},
    {"eif", false, [](const Tensor& x, const Tensor& state) { eif(x, state); }},
    {"izhikevich", true, [](const Tensor& x, const Tensor& state) { izhikevich(x, state, state); }},
    {"adaptive_lif", true, [](const Tensor& x, const Tensor& state) { adaptive_lif(x, state, state); }},
};

void check_inference(c10::Device device) {
  const at::NoGradGuard no_grad;
  const auto empty = [&](at::IntArrayRef shape) { return at::empty(shape, at::TensorOptions(device)); };
  const Tensor x = empty({16, 64}).zero_(), state = empty({64}).zero_();
  for (const auto& [neuron, two_states, call] : hot_calls) {
    const long results = allocations_of([&] {
      const Tensor spikes = empty({16, 64}), v = empty({64}), no_checkpoints = empty({0});
      const Tensor w = two_states ? empty({64}) : Tensor();
    });
    REQUIRE(results > 0);
    INFO(neuron << " on " << device);
    CHECK(allocations_of([&] { call(x, state); }) <= results);
  }
}

}  // namespace

TEST_CASE("a hot call without a gradient allocates its results, and nothing else") {
  const ThreadCount one(1);
  check_inference(at::kCPU);
}

TEST_CASE("a hot call without a gradient allocates its results, and nothing else, on a GPU") {
  if (!at::hasCUDA()) SPIKEFORGE_SKIP("no CUDA GPU on this machine");
  check_inference(at::kCUDA);
}

}  // namespace spikeforge::test
