// Compares the kernels of products with delays, compiled for the host, with their formulas. Each thread of a block has
// its own stack, and runs up to the next barrier before the next thread runs.
#include "csrc/kernels/layer/delayed_product.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/codegen/host_compiler.h"

namespace spikeforge::test {
namespace {

using namespace layers;

constexpr const char* block_of_stacks = R"(
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
static Index blockIdx, threadIdx;
using std::fma;
using std::min;
template <class F> F __ldg(const F* p) { return *p; }
inline void __syncwarp() {}

static ucontext_t all_threads, threads[1024];
static double said[1024];
static bool is_over[1024];
inline void __syncthreads() { swapcontext(&threads[threadIdx.x], &all_threads); }
template <class F> F __shfl_xor_sync(unsigned, F x, int distance) {
  said[threadIdx.x] = x;
  __syncthreads();
  const F heard = static_cast<F>(said[threadIdx.x ^ distance]);
  __syncthreads();
  return heard;
}
)";

constexpr const char* run_of_stacks = R"(
static spikeforge::layers::DelayedArguments arguments;
static void run_thread() {
  spikeforge_delayed(arguments);
  is_over[threadIdx.x] = true;
}

extern "C" void run(const void* words, unsigned blocks, unsigned block) {
  std::memcpy(&arguments, words, sizeof arguments);
  constexpr std::size_t bytes = 1 << 16;
  static std::vector<char> stacks(1024 * bytes);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned i = 0; i < block; ++i) {
      getcontext(&threads[i]);
      threads[i].uc_stack.ss_sp = stacks.data() + i * bytes;
      threads[i].uc_stack.ss_size = bytes;
      threads[i].uc_link = &all_threads;
      makecontext(&threads[i], run_thread, 0);
      is_over[i] = false;
    }
    for (bool any = true; any;) {
      any = false;
      for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x)
        if (!is_over[threadIdx.x]) {
          swapcontext(&all_threads, &threads[threadIdx.x]);
          any = true;
        }
    }
  }
}
)";

void run_by_turns(const DelayedLaunch& call) {
  static std::map<std::string, HostCompiled> compiled;
  const std::string text = std::string(device_words) + block_of_stacks + source_of(call.kernel).text + run_of_stacks;
  const HostCompiled& code = compiled.try_emplace(text, text, "-w").first->second;
  const DelayedGrid grid = grid_of(call);
  code.function<void(const void*, unsigned, unsigned)>("run")(&grid.arguments, grid.blocks, delayed_threads);
}

struct Sizes {
  int taps;
  std::int64_t rows, columns, steps, lanes;
  bool own_column = false;  // row i reads sequence i only
};

// Integer values, whose sums are the same in any order. The memory after the last step of `in` is NaN.
template <class F> void check_product(const Sizes& s) {
  INFO("taps " << s.taps << ", rows " << s.rows << ", columns " << s.columns << ", steps " << s.steps << ", lanes "
               << s.lanes << ", own column " << s.own_column);
  constexpr DType type = sizeof(F) == 8 ? DType::f64 : DType::f32;
  constexpr std::int64_t longest = 9;
  std::mt19937 random(5);
  std::uniform_int_distribution<int> small(-3, 3), shift(0, static_cast<int>(longest) + 1 - s.taps);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const auto numbers = [&](std::int64_t count) {
    std::vector<F> list(at(count));
    for (F& number : list) number = static_cast<F>(small(random));
    return list;
  };
  const std::int64_t stride = (s.steps + longest) * s.lanes, length = s.steps * s.lanes;
  std::vector<F> in = numbers((s.own_column ? s.rows : s.columns) * stride);
  in.resize(in.size() + at(delayed_margin(type, s.lanes)), std::numeric_limits<F>::quiet_NaN());
  const std::vector<F> coefficients = numbers(s.rows * s.columns * s.taps);
  std::vector<F> rows = numbers(s.rows * (length + 3)), out(at(s.rows * s.columns * s.taps), -99);
  std::vector<std::int32_t> shifts(at(s.rows * s.columns));
  for (std::int32_t& one : shifts) one = shift(random) * static_cast<std::int32_t>(s.lanes);

  std::vector<F> wanted_rows = rows, wanted_out(out.size());
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t c = 0; c < s.columns; ++c)
      for (std::int64_t n = 0; n < s.taps; ++n) {
        const std::int64_t entry = r * s.columns + c;
        const F* const shifted = &in[at((s.own_column ? r : c) * stride + shifts[at(entry)] + n * s.lanes)];
        for (std::int64_t j = 0; j < length; ++j) {
          wanted_rows[at(r * (length + 3) + j)] += coefficients[at(entry * s.taps + n)] * shifted[j];
          wanted_out[at(entry * s.taps + n)] += rows[at(r * (length + 3) + j)] * shifted[j];
        }
      }

  DelayedLaunch call{.kernel = {.pass = DelayedPass::sums, .type = type, .taps = s.taps},
                     .rows_count = s.rows,
                     .columns = s.columns,
                     .steps = s.steps,
                     .lanes = s.lanes,
                     .shifts = shifts.data(),
                     .coefficients = coefficients.data(),
                     .in = in.data(),
                     .in_stride = stride,
                     .in_of_row = s.own_column ? stride : 0,
                     .rows = rows.data(),
                     .rows_stride = length + 3,
                     .out = out.data()};
  REQUIRE(can_launch(call));
  run_by_turns(call);
  CHECK(out == wanted_out);
  call.kernel.pass = DelayedPass::add;
  run_by_turns(call);
  CHECK(rows == wanted_rows);
}

}  // namespace

// Rows and columns that fill a block and that do not; one warp per row and several; strips that end before the last
// step; samples that fill a warp and that do not.
TEST_CASE("the kernels of products with delays compute their formulas") {
  for (const Sizes& sizes :
       {Sizes{2, 1, 1, 1, 1}, Sizes{2, 3, 7, 13, 5}, Sizes{2, 17, 33, 8, 32}, Sizes{2, 70, 3, 20, 33},
        Sizes{3, 130, 9, 17, 3}, Sizes{8, 2, 21, 40, 7}, Sizes{2, 19, 1, 21, 11, true}, Sizes{2, 2, 3, 2000, 1}})
    check_product<float>(sizes);
  for (const Sizes& sizes : {Sizes{8, 33, 5, 5, 40}, Sizes{8, 3, 1, 11, 2, true}}) check_product<double>(sizes);
}

TEST_CASE("products with delays that need too many threads raise an error") {
  DelayedLaunch call{.kernel = {.pass = DelayedPass::add, .type = DType::f32, .taps = 2},
                     .rows_count = 10,
                     .columns = 10,
                     .steps = std::int64_t{1} << 20,
                     .lanes = std::int64_t{1} << 12,
                     .shifts = nullptr,
                     .in_stride = 0};
  CHECK(can_launch(call));
  call.lanes *= 4;
  CHECK(!can_launch(call));
}

}  // namespace spikeforge::test
