// Compares cells whose options are compile-time constants with cells whose options are run-time values. The results of
// cells are tested in tests/python/multistep/test_forward_backward.py.
#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/cells.h"
#include "csrc/neuron/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr unsigned seed = 20260117;
constexpr double alpha[] = {2.5};

// A plain loop over the cell, forward and backward: outputs, states and gradients.
template <NeuronKind kind, class Options> std::vector<float> run_cell(const Options& options) {
  using Cell = SpikingCell<float, typename NeuronStruct<kind>::template type<float, Options>, Sigmoid<float>, Options>;
  using State = std::array<float, 2>;
  std::mt19937 random(seed);
  const auto draw = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  std::array<float, Cell::n_params> params{}, grad_params{};
  for (float& param : params) param = draw(.5F, .9F);
  const Cell cell(params.data(), Sigmoid<float>(alpha), options);

  std::vector<float> all, xs;
  std::vector<State> before;
  State state{}, grad_state{};
  cell.initial(state.data());
  for (int t = 0; t < 9; ++t) {
    float y;
    xs.push_back(draw(-1, 1));
    before.push_back(state);
    cell.step(&xs.back(), state.data(), &y);
    all.insert(all.end(), {y, state[0], state[1]});
  }
  for (std::size_t t = xs.size(); t-- > 0;) {
    for (int s = 0; s < Cell::n_states; ++s) grad_state[s] += draw(-1, 1);
    const float grad_y = draw(-1, 1);
    float grad_x;
    cell.vjp(&xs[t], before[t].data(), &grad_y, grad_state.data(), &grad_x, grad_params.data());
    all.push_back(grad_x);
  }
  cell.finish(grad_state.data(), grad_params.data());
  all.insert(all.end(), grad_params.begin(), grad_params.end());
  return all;
}

template <NeuronKind kind, std::size_t bits> void check_options() {
  constexpr bool hard_reset = bits & 8, detach_reset = bits & 4, spiking = bits & 2, decay_input = bits & 1;
  INFO(neuron_row(kind).name << ", options " << bits << ", seed " << seed);
  const std::vector<float> dynamic = run_cell<kind>(
      CellForm{.hard_reset = hard_reset, .detach_reset = detach_reset, .spiking = spiking, .decay_input = decay_input});
  const auto fixed = run_cell<kind>(StaticOptions<hard_reset, detach_reset, spiking, decay_input>{});
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  CHECK(std::equal(dynamic.begin(), dynamic.end(), fixed.begin(), fixed.end(), same));
}

}  // namespace

TEST_CASE("an option that is known at compile time, as in GPU kernels, changes no bit") {
  for_each_neuron([]<NeuronKind kind>() {
    [&]<std::size_t... bits>(std::index_sequence<bits...>) { (check_options<kind, bits>(), ...); }
    (std::make_index_sequence<16>());
  });
}

}  // namespace spikeforge::test
