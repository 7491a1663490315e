// Compares complete kernels of traced cells with a plain loop over the evaluator. The printed source is compiled for
// the host, which runs its threads sequentially. Barriers and shuffles are not supported, so the time-parallel backward
// pass, sums over a warp and half types are not tested here.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include "tests/catch.h"
#include "tests/codegen/gallery.h"
#include "tests/codegen/host_kernel.h"
#include "tests/graph/bits.h"
#include "tests/graph/numbers.h"
#include "tests/graph/random_graph.h"

#include <fmt/format.h>

namespace spikeforge::test {
namespace {

struct Form {
  std::int64_t steps, neurons;
  bool store_states, with_tensors;
  std::int64_t channels = 0, inner = 1;  // of tensor parameters; 0: one value per neuron
  std::uint8_t bits = 0;                 // per value of the first output
  std::int64_t samples = 0;              // with different lengths and occasional starts; 0: no samples
};

template <class F> struct Sequences {  // several sequences [rows, N]
  std::vector<std::vector<F>> data;

  Sequences(std::size_t count, std::int64_t size) : data(count, std::vector<F>(static_cast<std::size_t>(size))) {}

  void fill(Dice& dice) {
    for (auto& sequence : data)
      for (F& x : sequence) x = static_cast<F>(dice.uniform(-2, 2));
  }
  std::vector<SequenceView> views(std::int64_t time_stride) const {
    std::vector<SequenceView> views;
    for (const auto& sequence : data) views.push_back({.data = sequence.data(), .time_stride = time_stride});
    return views;
  }
  std::vector<void*> pointers() {
    std::vector<void*> pointers;
    for (auto& sequence : data) pointers.push_back(sequence.data());
    return pointers;
  }
  std::vector<F> at(std::int64_t i) const {
    std::vector<F> values;
    for (const auto& sequence : data) values.push_back(sequence[static_cast<std::size_t>(i)]);
    return values;
  }
};

template <class F> std::vector<F> evaluated(const graph::Graph& graph, const std::vector<F>& arguments) {
  return graph::evaluate<F>(graph, std::span<const F>(arguments));
}

template <class F> class Comparison {
 public:
  Comparison(const TracedCell& cell, const Form& form, std::uint64_t seed)
      : cell_(cell),
        form_(form),
        T(form.steps),
        N(form.neurons),
        channels_(form.channels > 0 ? form.channels : N),
        x(cell.stages.inputs, T * N),
        grad_y(cell.stages.outputs, T * N),
        grad_states(cell.stages.states, form.store_states ? T * N : N),
        initial(cell.stages.states, N),
        params(cell.stages.params, N),
        y(cell.stages.outputs, T * N),
        states(cell.stages.states, form.store_states ? T * N : N),
        grad_x(cell.stages.inputs, T * N),
        grad_initial(cell.stages.states, N),
        grad_params(cell.stages.params, N) {
    Dice dice(seed);
    for (Sequences<F>* sequences : {&x, &grad_y, &grad_states, &initial, &params}) sequences->fill(dice);
    for (std::int64_t b = 0; b < form.samples; ++b)
      lengths_.push_back(b == 0 ? 0 : b == 1 ? static_cast<int>(T) : static_cast<int>(dice.uniform(0, T + 1)));
    for (std::int64_t i = 0; i < T * form.samples; ++i) start_.push_back(dice.uniform(0, 1) < .2);
  }

  void run() {
    const DType type = sizeof(F) == 4 ? DType::f32 : DType::f64;
    const std::int64_t length = cell_.checkpoint_length(type);
    std::vector<F> checkpoints(static_cast<std::size_t>((T - 1) / length * N) * cell_.stages.states);
    const auto inputs = x.views(N), gradients_y = grad_y.views(N), gradients = grad_states.views(N);
    std::vector<StateView> initial_views(cell_.stages.states);
    std::vector<ParamView> param_views(cell_.stages.params);
    for (std::size_t s = 0; form_.with_tensors && s < initial_views.size(); ++s)
      initial_views[s] = {initial.data[s].data(), type};
    for (std::size_t j = 0; j < param_views.size(); ++j) {
      if (form_.with_tensors)
        param_views[j] = {.data = params.data[j].data(), .type = type, .inner = form_.inner, .count = channels_};
      if (!form_.with_tensors) param_views[j].number = params.data[j][0];
    }
    const auto describe = [&](Launch& launch) {
      launch.cell = &cell_;
      launch.type = type;
      launch.steps = T;
      launch.neurons = N;
      launch.checkpoint_length = length;
      launch.store_states = form_.store_states;
      launch.inputs = inputs;
      launch.initial = initial_views;
      launch.params = param_views;
      if (form_.samples == 0) return;
      const SamplesView samples{.inner = N / form_.samples, .count = form_.samples};
      launch.lengths = {samples, lengths_.data()};
      launch.start = {samples, start_.data(), form_.samples};
    };
    const auto outputs = y.pointers(), last = states.pointers(), to_x = grad_x.pointers();
    auto to_initial = grad_initial.pointers(), to_params = grad_params.pointers();
    if (!form_.with_tensors) std::ranges::fill(to_initial, nullptr);

    ForwardLaunch forward;
    describe(forward);
    forward.outputs = outputs;
    forward.states = last;
    forward.checkpoints = checkpoints.data();
    if (form_.bits != 0) forward.packed = {form_.bits, packed_.data(), &valid_};
    takes_turns_ = run_on_host(forward, 1).in_turns;

    BackwardLaunch backward;
    describe(backward);
    backward.grad_outputs = gradients_y;
    backward.grad_states = gradients;
    backward.checkpoints = checkpoints.data();
    backward.any_grad_input = true;
    backward.any_grad_param = !to_params.empty();
    backward.grad_inputs = to_x;
    backward.grad_initial = to_initial;
    backward.grad_params = to_params;
    // The schedule of a device with so few multiprocessors that no neuron is divided among several warps.
    at_once_ = neurons_at_once(backward, run_on_host(backward, 1), 1);
    REQUIRE(takes_turns_ == (form_.channels > 0));
    REQUIRE((at_once_ < N) == (form_.channels > 0 && type != DType::f64));
  }

  void check() {
    for (std::int64_t i = 0; i < at_once_; i += i + 41 < at_once_ ? 41 : 1) {
      std::vector<F> sums(cell_.stages.factors, F(0));
      for (std::int64_t turn = i; turn < N; turn += at_once_) check_neuron(turn, sums);
      same(grad_params.at(i), evaluated(cell_.stages.epilogue, joined<F>({params_of(i), sums})), "parameter gradient",
           i, 0);
    }
    if (form_.bits != 0) check_packed();
    INFO(differing_ << " of the compared values differ, the first: " << first_);
    CHECK(differing_ == 0);
  }

 private:
  // Four bits of each output, two outputs in a byte: a thread of two neurons writes them without data of other threads.
  void check_packed() {
    std::vector<std::uint8_t> expected;
    bool all_legal = true;
    for (std::size_t i = 0; i + 1 < y.data[0].size(); i += 2) {
      int byte = 0;
      for (const std::size_t k : {0, 1}) {
        const double number = y.data[0][i + k];
        const bool is_legal = number >= 0 && number <= 15 && number == std::floor(number);
        all_legal = all_legal && is_legal;
        byte |= (is_legal ? static_cast<int>(number) : 0) << 4 * k;
      }
      expected.push_back(static_cast<std::uint8_t>(byte));
    }
    CHECK(packed_ == expected);
    CHECK((valid_ == 1) == all_legal);
  }

  std::vector<F> params_of(std::int64_t i) const {
    return params.at(form_.with_tensors ? i / form_.inner % channels_ : 0);
  }

  std::int64_t sample_of(std::int64_t i) const { return i / (N / form_.samples); }
  std::int64_t length_of(std::int64_t i) const {
    return form_.samples == 0 ? T : lengths_[static_cast<std::size_t>(sample_of(i))];
  }
  bool starts(std::int64_t i, std::int64_t t) const {
    return form_.samples != 0 && start_[static_cast<std::size_t>(t * form_.samples + sample_of(i))] != 0;
  }

  std::vector<F> own_states() const {
    std::vector<F> state;
    for (const graph::State& each : cell_.graph.signature().states) state.push_back(static_cast<F>(each.initial));
    return state;
  }

  // Adds the neuron's contribution to the factors of its parameters' gradients to `sums`.
  void check_neuron(std::int64_t i, std::vector<F>& sums) {
    const autodiff::Stages& stages = cell_.stages;
    const std::vector<F> hoisted = evaluated(stages.prologue, params_of(i));
    const std::int64_t length = length_of(i);
    std::vector<F> state = form_.with_tensors ? initial.at(i) : own_states();
    std::vector<std::vector<F>> before;
    for (std::int64_t t = 0; t < length; ++t) {
      if (starts(i, t)) state = own_states();
      before.push_back(state);
      const std::vector<F> next = evaluated(stages.step, joined<F>({x.at(t * N + i), state, hoisted}));
      const auto first_state = next.begin() + static_cast<std::ptrdiff_t>(stages.outputs);
      same(y.at(t * N + i), {next.begin(), first_state}, "output", i, t);
      state.assign(first_state, next.end());
      if (form_.store_states) same(states.at(t * N + i), state, "state", i, t);
    }
    if (!form_.store_states) same(states.at(i), state, "last state", i, T);
    for (std::int64_t t = length; t < T; ++t) {
      same(y.at(t * N + i), std::vector<F>(stages.outputs), "output behind the end", i, t);
      same(grad_x.at(t * N + i), std::vector<F>(stages.inputs), "input gradient behind the end", i, t);
      if (form_.store_states) same(states.at(t * N + i), std::vector<F>(stages.states), "state behind the end", i, t);
    }

    std::vector<F> grad(stages.states, F(0));
    const auto add = [](std::vector<F>& to, const std::vector<F>& values) {
      for (std::size_t k = 0; k < to.size(); ++k) to[k] = to[k] + values[k];
    };
    if (!form_.store_states) add(grad, grad_states.at(i));
    for (std::int64_t t = length - 1; t >= 0; --t) {
      if (form_.store_states) add(grad, grad_states.at(t * N + i));
      const std::vector<F> all = evaluated(
          stages.backward,
          joined<F>({x.at(t * N + i), before[static_cast<std::size_t>(t)], hoisted, grad_y.at(t * N + i), grad}));
      const auto to_states = all.begin() + static_cast<std::ptrdiff_t>(stages.inputs);
      const auto to_factors = to_states + static_cast<std::ptrdiff_t>(stages.states);
      same(grad_x.at(t * N + i), {all.begin(), to_states}, "input gradient", i, t);
      grad.assign(to_states, to_factors);
      add(sums, {to_factors, all.end()});
      if (starts(i, t)) grad.assign(grad.size(), F(0));
    }
    if (form_.with_tensors) same(grad_initial.at(i), grad, "initial gradient", i, 0);
  }

  void same(const std::vector<F>& values, const std::vector<F>& expected, const char* what, std::int64_t i,
            std::int64_t t) {
    if (same_bits(values, expected)) return;
    if (differing_++ == 0) first_ = fmt::format("{} of neuron {} at step {}", what, i, t);
  }

  const TracedCell& cell_;
  const Form form_;
  const std::int64_t T, N, channels_;
  std::int64_t at_once_ = 0;
  bool takes_turns_ = false;
  std::vector<std::int32_t> lengths_;
  std::vector<unsigned char> start_;
  Sequences<F> x, grad_y, grad_states, initial, params, y, states, grad_x, grad_initial, grad_params;
  std::vector<std::uint8_t> packed_ = std::vector<std::uint8_t>(static_cast<std::size_t>(T * N / 2));
  std::uint8_t valid_ = 1;
  int differing_ = 0;
  std::string first_;
};

template <class F> void check(const std::string& text, const Form& form) {
  INFO(text << "T = " << form.steps << ", N = " << form.neurons << ", " << 8 * sizeof(F) << " bits");
  const auto cell = intern(text);
  Comparison<F> comparison(*cell, form, 7);
  comparison.run();
  comparison.check();
}

}  // namespace

TEST_CASE("the kernels of the gallery compute the equations") {
  bool is_float = false;
  for (const auto& [name, text] : gallery()) {
    is_float = !is_float;
    if (is_float)
      check<float>(text, {.steps = 21, .neurons = 1001, .store_states = false, .with_tensors = true});
    else
      check<double>(text, {.steps = 16, .neurons = 400, .store_states = true, .with_tensors = false});
  }
}

TEST_CASE("the kernels of the gallery compute the equations in the other type, states stored or not", "[long]") {
  for (const auto& [name, text] : gallery()) {
    check<float>(text, {.steps = 21, .neurons = 1001, .store_states = true, .with_tensors = true});
    check<double>(text, {.steps = 16, .neurons = 400, .store_states = false, .with_tensors = false});
  }
}

TEST_CASE("kernels compute cells without states, without parameters, and with neither") {
  for (const char* text : {"neuron threshold(x) { return spike(x - 1, atan(2)) }",
                           "neuron scaled(x, y;; a, b) { return spike(a * x - b, atan(2)), y * a }",
                           "neuron counter(x; n = 0.5) { return n\n n' = n + x }"}) {
    check<float>(text, {.steps = 21, .neurons = 1000, .store_states = false, .with_tensors = true});
    check<double>(text, {.steps = 33, .neurons = 300, .store_states = true, .with_tensors = false});
  }
}

TEST_CASE("the first output is also written as bits, and values without bits are reported") {
  for (const char* text :
       {"neuron counts(x; n) { s = spike(x - 0.5, atan(2)) + 2 * spike(n, atan(2)); return s, x\n n' = n + x }",
        "neuron some(x) { return floor(4 * x) }"})
    check<float>(text, {.steps = 21, .neurons = 1000, .store_states = false, .with_tensors = true, .bits = 4});
}

TEST_CASE("samples end and restart independently") {
  for (const char* text : {"neuron leaky(x; v = 0.25; tau, th) { h = v + (x - v) / tau\n s = spike(h - th, atan(2))\n"
                           " return s\n v' = select(s, 0, h) }",
                           "neuron scaled(x, y;; a, b) { return spike(a * x - b, atan(2)), y * a }"}) {
    check<float>(text, {.steps = 21, .neurons = 1200, .store_states = false, .with_tensors = true, .samples = 5});
    check<double>(text, {.steps = 37, .neurons = 231, .store_states = true, .with_tensors = false, .samples = 7});
  }
}

TEST_CASE("a thread computes several neurons in a loop if parameters repeat themselves") {
  for (const char* text : {"neuron leaky(x; v; tau, th) { h = v + (x - v) / tau\n s = spike(h - th, atan(2))\n"
                           " return s\n v' = select(s, 0, h) }",
                           "neuron scaled(x, y;; a, b) { return spike(a * x - b, atan(2)), y * a }"}) {
    check<float>(text, {.steps = 4, .neurons = 20000, .store_states = false, .with_tensors = true, .channels = 50});
    check<float>(
        text, {.steps = 21, .neurons = 19236, .store_states = true, .with_tensors = true, .channels = 3, .inner = 7});
    check<double>(
        text, {.steps = 5, .neurons = 9500, .store_states = false, .with_tensors = true, .channels = 5, .inner = 19});
  }
}

}  // namespace spikeforge::test
