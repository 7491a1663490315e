// Compares complete kernels of Loihi's neurons on the host with a plain loop over their cells.
// (tests/python/loihi/test_loihi.py compares the cells with the equations.)
#include "csrc/kernels/multistep/loihi_cells.h"

#include <array>
#include <random>
#include <vector>

#include "tests/codegen/host_kernel.h"

namespace spikeforge::test {
namespace {

using Ints = std::vector<int>;

struct Call {
  std::int64_t steps, neurons;
  bool store_states, with_tensors;
  int multiprocessors;  // of the device for which the schedule is chosen
};

constexpr std::array<std::array<int, 2>, 6> ranges = {
    {{-1, 4095}, {0, 4095}, {-4096, 4095}, {-3, 7}, {0, 3000}, {-3000, -1}}};

template <bool ternary, LoihiForm form> void check(const Call& call) {
  using Cell = Loihi<ternary, form>;
  constexpr int S = Cell::n_states, P = Cell::n_params;
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const auto ints = [&](std::int64_t size, int low, int high) {
    Ints values(static_cast<std::size_t>(size));
    for (int& value : values) value = draw(low, high);
    return values;
  };
  const std::int64_t T = call.steps, N = call.neurons;
  const Ints x = ints(T * N, -32768, 32767);
  Ints y(x.size());
  std::array<Ints, S> initial, states;
  std::array<Ints, P> params;

  const SequenceView inputs{.data = x.data(), .time_stride = N};
  void* const outputs = y.data();
  std::array<StateView, S> initial_views;
  std::array<ParamView, P> param_views;
  std::array<void*, S> state_results;
  for (std::size_t s = 0; s < S; ++s) {
    initial[s] = s == 2 ? ints(N, 0, 4) : ints(N, -(1 << 23), 1 << 23);
    states[s].resize(static_cast<std::size_t>(call.store_states ? T * N : N));
    state_results[s] = states[s].data();
    if (call.with_tensors) {
      initial_views[s] = {.data = initial[s].data(), .type = DType::i32};
    } else {
      initial[s].assign(initial[s].size(), 0);
    }
  }
  for (std::size_t j = 0; j < P; ++j) {
    const bool of_form = j >= Cell::first_of_form;
    params[j] = of_form ? Ints(static_cast<std::size_t>(N), j == Cell::first_of_form ? 5 : -2)
                        : ints(N, ranges[j][0], ranges[j][1]);
    if (call.with_tensors && !of_form) {
      param_views[j] = {.data = params[j].data(), .type = DType::i32, .count = N};
    } else {
      param_views[j].number = params[j][0];
      params[j].assign(params[j].size(), params[j][0]);
    }
  }
  ForwardLaunch launch;
  launch.cell = &loihi_cell(ternary, form);
  launch.type = DType::i32;
  launch.steps = T;
  launch.neurons = N;
  launch.store_states = call.store_states;
  launch.inputs = {&inputs, 1};
  launch.initial = initial_views;
  launch.params = param_views;
  launch.outputs = {&outputs, 1};
  launch.states = state_results;
  const kernels::Schedule schedule = run_on_host(launch, call.multiprocessors);

  int differing = 0;
  for (std::int64_t i = 0; i < N; ++i) {
    std::array<int, P> p{};
    std::array<int, S> state{};
    const auto n = static_cast<std::size_t>(i);
    for (std::size_t j = 0; j < P; ++j) p[j] = params[j][n];
    for (std::size_t s = 0; s < S; ++s) state[s] = initial[s][n];
    const Cell cell(p.data());
    for (std::int64_t t = 0; t < T; ++t) {
      const auto at = static_cast<std::size_t>(t * N + i);
      int spike = 0;
      cell.step(&x[at], state.data(), &spike);
      differing += y[at] != spike;
      for (std::size_t s = 0; s < S; ++s) differing += call.store_states && states[s][at] != state[s];
    }
    for (std::size_t s = 0; s < S; ++s) differing += !call.store_states && states[s][n] != state[s];
  }
  INFO("T = " << T << ", N = " << N << ", width " << int{schedule.width} << ", rows " << int{schedule.rows});
  CHECK(differing == 0);
}

}  // namespace

TEST_CASE("the kernels of Loihi's neurons compute their cells") {
  check<false, LoihiForm::plain>({21, 4096, false, false, 1});
  check<true, LoihiForm::plain>({19, 1001, true, true, 1});
  check<false, LoihiForm::reset>({21, 1001, true, true, 132});
  check<true, LoihiForm::reset>({150, 96, false, false, 132});
  check<false, LoihiForm::refractory>({33, 4098, false, true, 1});
  check<true, LoihiForm::refractory>({17, 7, true, true, 132});
}

}  // namespace spikeforge::test
