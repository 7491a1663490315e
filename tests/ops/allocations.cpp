#include "tests/ops/calls.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdlib>
#include <new>

#include "tests/catch.h"

// Replaces operator new for this program and the libraries that it loads.
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

template <class Body> long allocations_of(Body&& body) {
  for (int i = 0; i < 3; ++i) body();  // the first calls fill tables and caches
  const long before = allocations;
  body();
  return allocations - before;
}

void check_inference(c10::Device device) {
  const at::NoGradGuard no_grad;
  const auto empty = [&](at::IntArrayRef shape) { return at::empty(shape, at::TensorOptions(device)); };
  const Tensor x = empty({16, 64}).zero_(), state = empty({64}).zero_();
#define SPIKEFORGE_STATE(name) state,
#define SPIKEFORGE_TENSOR(name) state,
#define SPIKEFORGE_NEURON(op, Struct, header, tensors, states, params)                                            \
  {                                                                                                               \
    const long results = allocations_of([&] {                                                                     \
      const Tensor spikes = empty({16, 64}), v = empty({64}), no_checkpoints = empty({0});                        \
      const Tensor w = state_count(NeuronKind::op) == 2 ? empty({64}) : Tensor();                                 \
    });                                                                                                           \
    REQUIRE(results > 0);                                                                                         \
    INFO(#op << " on " << device);                                                                                \
    const long calls = allocations_of(                                                                            \
        [&] { op(x, SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors) SPIKEFORGE_EACH(SPIKEFORGE_STATE, states){}); }); \
    /* A required tensor passes through the dispatcher in a list, which is one more allocation. */                \
    CHECK(calls <= results + static_cast<long>(tensor_count(NeuronKind::op)));                                    \
  }
#include "csrc/neuron/neurons.def"
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
