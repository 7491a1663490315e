// Kernels with illegal parameter values on a GPU, which the host does not check: the results are NaN, or, for Loihi's
// neurons, which have no NaN, a spike in every step. The kernels run on the host, as in loihi_kernels.cpp.
#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/kernels/multistep/predefined_cells.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/codegen/host_kernel.h"

namespace spikeforge::test {
namespace {

constexpr std::int64_t T = 21, N = 96;
constexpr std::size_t bad_neuron = 7;
constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

const std::vector<double>& illegal_values(Legal legal) {
  static const std::vector<double> none, any = {nan}, positive = {0, -.5, nan, infinity, 1e-320},
                                         fraction = {-.1, 1.5, nan};
  switch (legal) {
    case Legal::any: return any;
    case Legal::positive: return positive;
    case Legal::fraction: return fraction;
    default: return none;
  }
}

// The states and spikes of every neuron after every step, with one parameter as a tensor.
struct Outcome {
  std::vector<double> spikes, v;
};

Outcome run(const PredefinedCell& cell, std::size_t param, const std::vector<double>& values, bool with_state,
            bool hard_reset) {
  const auto rows = static_cast<std::size_t>(T * N);
  std::vector<double> x(rows, .3), zeros(N), second(rows);
  Outcome outcome{std::vector<double>(rows), std::vector<double>(rows)};
  const SequenceView input{.data = x.data(), .time_stride = N};
  void* const output = outcome.spikes.data();
  void* const states[] = {outcome.v.data(), second.data()};
  std::vector<StateView> initial(cell.states.size());
  if (with_state) initial[0] = {zeros.data(), DType::f64};
  std::vector<ParamView> params;
  for (std::size_t j = 0; j < cell.params.size(); ++j)
    params.push_back(j == param ? ParamView{.data = values.data(), .type = DType::f64, .count = N}
                                : ParamView{.number = cell.params[j].default_value});
  ForwardLaunch launch;
  launch.cell = &cell;
  launch.form = {.hard_reset = hard_reset};
  launch.type = DType::f64;
  launch.steps = T;
  launch.neurons = N;
  launch.store_states = true;
  launch.inputs = {&input, 1};
  launch.initial = initial;
  launch.params = params;
  launch.outputs = {&output, 1};
  launch.states = {states, cell.states.size()};
  run_on_host(launch, 132);
  return outcome;
}

}  // namespace

TEST_CASE("an illegal value of a tensor makes its neuron NaN, and no other") {
  for (const NeuronKind kind :
       {NeuronKind::integrate_and_fire, NeuronKind::lif, NeuronKind::eif, NeuronKind::adaptive_lif}) {
    const PredefinedCell& cell = predefined_cell(kind);
    for (std::size_t j = 0; j < cell.params.size(); ++j) {
      const CellParam& param = cell.params[j];
      const bool variant = j % 2 == 0;  // each parameter is tested with one of the two forms
      const auto& bad = illegal_values(param.legal);
      for (std::size_t i = 0; i < bad.size(); i += kind == NeuronKind::lif ? 1 : 2) {
        INFO(cell.name << ": " << param.name << " = " << bad[i]);
        std::vector<double> values(N, param.default_value);
        values[bad_neuron] = bad[i];
        const bool hard_reset = variant || param.name == "v_reset";
        const Outcome outcome = run(cell, j, values, variant, hard_reset);
        int wrong = 0;
        for (std::size_t k = 0; k < outcome.v.size(); ++k) {
          const bool is_bad = k % N == bad_neuron;
          wrong += std::isnan(outcome.v[k]) != is_bad || (is_bad && outcome.spikes[k] != 0);
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a neuron of Loihi with an illegal value fires at every step, and no other does") {
  for (const bool ternary : {false, true})
    for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory}) {
      if (ternary == (form == LoihiForm::plain)) continue;  // its parameters are tested in another combination
      const LoihiCell& cell = loihi_cell(ternary, form);
      for (std::size_t j = 0; j < cell.params.size(); ++j) {
        const CellParam& param = cell.params[j];
        INFO(cell.name << ": " << param.name);
        std::vector<int> x(T * N), y(T * N), values(N, static_cast<int>(param.default_value));
        values[bad_neuron] = static_cast<int>(param.least) - 1;
        const SequenceView input{.data = x.data(), .time_stride = N};
        void* const output = y.data();
        std::vector<std::vector<int>> states(cell.states.size(), std::vector<int>(N));
        std::vector<void*> state_results;
        for (std::vector<int>& state : states) state_results.push_back(state.data());
        const std::vector<StateView> initial(cell.states.size());
        std::vector<ParamView> params;
        for (std::size_t i = 0; i < cell.params.size(); ++i)
          params.push_back(i == j ? ParamView{.data = values.data(), .type = DType::i32, .count = N}
                                  : ParamView{.number = cell.params[i].default_value});
        ForwardLaunch launch;
        launch.cell = &cell;
        launch.type = DType::i32;
        launch.steps = T;
        launch.neurons = N;
        launch.inputs = {&input, 1};
        launch.initial = initial;
        launch.params = params;
        launch.outputs = {&output, 1};
        launch.states = state_results;
        run_on_host(launch, 132);
        int wrong = 0;
        for (std::size_t k = 0; k < y.size(); ++k) wrong += y[k] != (k % N == bad_neuron ? 1 : 0);
        CHECK(wrong == 0);
      }
    }
}

}  // namespace spikeforge::test
