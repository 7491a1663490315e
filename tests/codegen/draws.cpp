// Compares the kernels (with their loop) of cells that draw random numbers with those of cells that receive the same
// numbers as inputs. The forward passes have the same bits, for any width, layout and piece of a sequence.
#include "csrc/neuron/draws.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include "tests/catch.h"
#include "tests/codegen/host_kernel.h"
#include "tests/graph/bits.h"
#include "tests/graph/random_graph.h"

#include <algorithm>
#include <cmath>

namespace spikeforge::test {
namespace {

constexpr const char* drawing =
    "neuron noisy(x; v; tau, p) { k = 1 / (tau + draw_once(uniform())); h = v + (x + normal() - v) * k\n"
    " s = spike(h - 1 - uniform(), atan(2)); return s, h * bernoulli(p) + poisson(0.7)\n v' = select(s, 0, h) }";
constexpr const char* handed =
    "neuron handed(x, o, n, u, b, c; v; tau, p) { k = 1 / (tau + o); h = v + (x + n - v) * k\n"
    " s = spike(h - 1 - u, atan(2)); return s, h * b + c + 0 * p\n v' = select(s, 0, h) }";
constexpr std::size_t n_draws = 5;

constexpr std::int64_t seed_of_draws = 0x0123456789abcdef;

// Returns random word d of a neuron at a step, from the counter described in draws.h.
Word word(std::uint64_t neuron, std::uint64_t step, unsigned draw, unsigned stream) {
  const auto low = [](std::uint64_t x) { return static_cast<unsigned>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<unsigned>(x >> 32) & 0xffffU; };
  return philox({{low(neuron / 4), high(neuron / 4) | stream << 16, low(step), high(step) | draw << 16}}, seed_of_draws)
      .word[neuron % 4];
}

template <class F> auto bits(std::uint64_t neuron, std::uint64_t step, unsigned draw) {
  if constexpr (sizeof(F) == 4)
    return word(neuron, step, draw, 0);
  else
    return DoubleWord{word(neuron, step, draw, 0)} << 32 | word(neuron, step, draw, 1);
}

struct DrawForm {
  std::int64_t steps, neurons, offset, fast = 1, slow = 1;
};

template <class F> struct DrawRun {
  DrawRun(const DrawForm& form, const char* text, bool is_handed) : form(form), cell(intern(text)) {
    const auto size = static_cast<std::size_t>(form.steps * form.neurons);
    Dice dice(3);
    for (std::size_t i = 0; i < cell->inputs.size(); ++i) inputs.emplace_back(size);
    for (F& x : inputs[0]) x = static_cast<F>(dice.uniform(-1, 3));
    for (std::int64_t t = 0; t < form.steps && is_handed; ++t)
      for (std::int64_t i = 0; i < form.neurons; ++i) hand(t, i);
    for (auto* list : {&outputs, &grad_outputs})
      for (std::size_t k = 0; k < 2; ++k) list->emplace_back(size);
    for (auto& grad : grad_outputs)
      for (F& g : grad) g = static_cast<F>(dice.uniform(-1, 1));
    grad_inputs.resize(inputs.size(), std::vector<F>(size));
    for (auto* list : {&state, &grad_tau, &grad_p}) list->resize(static_cast<std::size_t>(form.neurons));
  }

  void hand(std::int64_t t, std::int64_t i) {
    const auto neuron = static_cast<std::uint64_t>(i / (form.fast * form.slow) * (form.fast * form.slow) +
                                                   i % form.fast * form.slow + i / form.fast % form.slow);
    const auto step = static_cast<std::uint64_t>(form.offset + t);
    const auto at = static_cast<std::size_t>(t * form.neurons + i);
    inputs[1][at] = uniform(bits<F>(neuron, (std::uint64_t{1} << 48) - 1, 0));
    inputs[2][at] = normal(bits<F>(neuron, step, 1));
    inputs[3][at] = uniform(bits<F>(neuron, step, 2));
    inputs[4][at] = bernoulli(bits<F>(neuron, step, 3), F(.4));
    inputs[5][at] = poisson(bits<F>(neuron, step, 4), bits<F>(neuron, step, 5), F(.7));
  }

  void run() {
    const DType type = sizeof(F) == 4 ? DType::f32 : DType::f64;
    const auto views = [&](const std::vector<std::vector<F>>& list) {
      std::vector<SequenceView> all;
      for (const auto& sequence : list) all.push_back({.data = sequence.data(), .time_stride = form.neurons});
      return all;
    };
    const auto pointers = [](std::vector<std::vector<F>>& list) {
      std::vector<void*> all;
      for (auto& sequence : list) all.push_back(sequence.data());
      return all;
    };
    const auto x = views(inputs), grads = views(grad_outputs);
    const std::vector<StateView> initial(1);
    const std::vector<SequenceView> no_grad_state(1);
    const std::vector<ParamView> params = {{.number = 2.5}, {.number = .4}};
    // Both cells have the same checkpoint spacing, because the length of a segment determines the bits of sums over it.
    const std::int64_t length = 8;
    std::vector<F> checkpoints(static_cast<std::size_t>((form.steps - 1) / length * form.neurons));
    const auto describe = [&](Launch& launch) {
      launch.cell = cell.get();
      launch.type = type;
      launch.steps = form.steps;
      launch.neurons = form.neurons;
      launch.checkpoint_length = length;
      launch.inputs = x;
      launch.initial = initial;
      launch.params = params;
      launch.draws = {.seed_number = seed_of_draws, .offset_number = form.offset, .fast = form.fast, .slow = form.slow};
    };
    const auto y = pointers(outputs), to_x = pointers(grad_inputs);
    const std::vector<void*> last = {state.data()}, none = {nullptr}, to_params = {grad_tau.data(), nullptr};
    ForwardLaunch forward;
    describe(forward);
    forward.outputs = y;
    forward.states = last;
    forward.checkpoints = checkpoints.data();
    run_on_host(forward, 1);
    BackwardLaunch backward;
    describe(backward);
    backward.grad_outputs = grads;
    backward.grad_states = no_grad_state;
    backward.checkpoints = checkpoints.data();
    backward.any_grad_input = backward.any_grad_param = true;
    backward.grad_inputs = to_x;
    backward.grad_initial = none;
    backward.grad_params = to_params;
    run_on_host(backward, 1);
  }

  DrawForm form;
  std::shared_ptr<const TracedCell> cell;
  std::vector<std::vector<F>> inputs, outputs, grad_outputs, grad_inputs;
  std::vector<F> state, grad_tau, grad_p;
};

// A number that is drawn once is computed once, so that derivatives are multiplied in a different order.
template <class F> bool are_close(const std::vector<F>& a, const std::vector<F>& b) {
  F largest = 0, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    apart = std::max(apart, std::abs(a[i] - b[i]));
  }
  return largest > 0 && apart <= largest * (sizeof(F) == 4 ? F(1e-5) : F(1e-13));
}

template <class F> void check_draws(const DrawForm& form) {
  INFO("T = " << form.steps << ", N = " << form.neurons << ", " << 8 * sizeof(F) << " bits");
  DrawRun<F> drew(form, drawing, false), given(form, handed, true);
  REQUIRE(given.inputs.size() == 1 + n_draws);
  drew.run();
  given.run();
  for (std::size_t k = 0; k < 2; ++k) CHECK(same_bits(drew.outputs[k], given.outputs[k]));
  CHECK(same_bits(drew.state, given.state));
  CHECK(are_close(drew.grad_inputs[0], given.grad_inputs[0]));
  CHECK(are_close(drew.grad_tau, given.grad_tau));
}

}  // namespace

TEST_CASE("a kernel that draws computes the results of one that receives the random numbers") {
  check_draws<float>({.steps = 21, .neurons = 1001, .offset = 0});
  check_draws<double>({.steps = 16, .neurons = 400, .offset = (std::int64_t{5} << 32) + 3});
}

TEST_CASE("a neuron draws by its place in the shape, in whichever order memory has it") {
  check_draws<float>({.steps = 5, .neurons = 2 * 12 * 7, .offset = 2, .fast = 7, .slow = 12});
}

}  // namespace spikeforge::test
