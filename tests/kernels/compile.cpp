#include "tests/kernels/covering_list.h"

#include "csrc/jit/errors.h"
#include "csrc/jit/nvrtc.h"
#include "csrc/kernels/multistep/channel_sums.h"
#include "csrc/neuron/neuron_kind.h"

#include <atomic>
#include <iostream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

struct Outcome {
  int compiled = 0;
  int parking = 0;
  int most_registers = 0;
  std::vector<std::string> failures;
};

Outcome compile_all(const std::vector<CoveredKernel>& kernels, const std::string& arch) {
  const jit::Nvrtc& nvrtc = jit::Nvrtc::get();
  Outcome outcome;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < kernels.size(); i = next++) {
      const jit::KernelSource& source = kernels[i].source;
      std::string failure;
      int registers = 0;
      int spilling = 0;
      try {
        const jit::CompileResult result = nvrtc.compile({.name = source.name,
                                                         .text = source.text,
                                                         .options = source.options,
                                                         .arch = arch,
                                                         .headers = {},
                                                         .anew = true});
        if (!result.usage) {
          failure = "no resource usage in the log";
        } else {
          registers = result.usage->registers;
          spilling = result.usage->spill_bytes > 0 ? 1 : 0;
          if (result.usage->spill_bytes > kernels[i].most_spilled)
            failure = "spills " + std::to_string(result.usage->spill_bytes) + " bytes";
        }
      } catch (const jit::RuntimeError& error) {
        failure = error.what();
      }
      const std::scoped_lock lock(mutex);
      ++outcome.compiled;
      outcome.parking += spilling;
      outcome.most_registers = std::max(outcome.most_registers, registers);
      if (!failure.empty()) outcome.failures.push_back(failure + "\n" + source.text);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

// The choices that cover the most pairs come first.
void check_arch(const std::string& arch, Share share) {
  const std::vector<CoveredKernel> all = covering_list();
  REQUIRE(all.size() > 100);
  REQUIRE(all.size() <= 60 * std::size(all_neurons));  // a limit on the duration of the long tests
  std::vector<CoveredKernel> kernels;
  for (std::size_t i = share.first; i < all.size(); i += share.every) kernels.push_back(all[i]);
  for (const DType type : {DType::f32, DType::f64})
    kernels.push_back({.source = kernels::print_channel_sums(type), .most_spilled = 0});
  const Outcome outcome = compile_all(kernels, arch);
  std::cout << arch << ": " << outcome.compiled << " kernels compiled, at most " << outcome.most_registers
            << " registers, " << outcome.parking << " park a value, " << outcome.failures.size() << " failures\n";
  for (const std::string& failure : outcome.failures) UNSCOPED_INFO(failure);
  CHECK(outcome.failures.empty());
  CHECK(outcome.compiled == static_cast<int>(kernels.size()));
}

}  // namespace

TEST_CASE("a sample of all options compiles for sm_90 without spills") { check_arch("sm_90", {0, 16}); }
TEST_CASE("some kernels compile for sm_80 without spills") { check_arch("sm_80", {4, 48}); }
TEST_CASE("some kernels compile for sm_100 without spills") { check_arch("sm_100", {20, 48}); }
TEST_CASE("some kernels compile for sm_120 without spills") { check_arch("sm_120", {36, 48}); }

// Compiles every kernel of the covering list for two architectures.
TEST_CASE("a half of all pairs of options compiles for sm_80 without spills", "[long]") { check_arch("sm_80", {0, 2}); }
TEST_CASE("the other half of them compiles for sm_90 without spills", "[long]") { check_arch("sm_90", {1, 2}); }
TEST_CASE("a half of all pairs of options compiles for sm_100 without spills", "[long]") {
  check_arch("sm_100", {0, 2});
}
TEST_CASE("the other half of them compiles for sm_120 without spills", "[long]") { check_arch("sm_120", {1, 2}); }

}  // namespace spikeforge::tests
