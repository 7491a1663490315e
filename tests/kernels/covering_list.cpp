#include "tests/kernels/covering_list.h"

#include "csrc/base/somewhere.h"
#include "csrc/graph/surrogate.h"
#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <tuple>
#include <unordered_set>

#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

using kernels::Direction;
using kernels::KernelSpec;

// The options of a call. The value of an option is a number from 0 on.
enum Option {
  cell,
  type,
  surrogate,
  soft_reset,
  detach_reset,
  smooth,
  undecayed_input,
  steps,
  neurons,
  store_states,
  initial,
  params,
  save,
  grad_outputs,
  grad_states,
  wants,
  n_options
};

using Choice = std::array<int, n_options>;
using Pair = std::tuple<int, int, int, int>;  // option, value, option, value

// Cells whose calls have the same options.
struct Family {
  std::vector<const Cell*> cells;
  std::vector<DType> types;
  bool has_form;  // whether the cells have the options of CellForm
};

const std::vector<DType> floating = {DType::f16, DType::bf16, DType::f32, DType::f64};

Family predefined_cells() {
  Family family{.cells = {}, .types = floating, .has_form = true};
  for (const NeuronKind kind : all_neurons) family.cells.push_back(&predefined_cell(kind));
  return family;
}

// A cell with one state, which is the most common; one with several inputs, states and outputs; one without state; and
// one with every kind of draw.
Family traced_cells() {
  Family family{.cells = {}, .types = floating, .has_form = false};
  static std::vector<std::shared_ptr<const TracedCell>> held;
  for (const char* text :
       {"neuron leaky(x; v; tau, high, low) { h = v + (x - v) / tau; s = spike(h - high, atan(2)); return s\n"
        " v' = select(s, low, h) }",
        "neuron adaptive(x, y; v, w; tau, a, b) { h = v + (x - v - w) / tau; s = spike(h - 1, sigmoid(4))\n"
        " return s, h * y\n v' = h - s; w' = a * w + b * s }",
        "neuron scaled(x;; a, b) { return spike(a * x - b, atan(2)) }",
        "neuron noisy(x; v; tau, p) { k = 1 / (tau + draw_once(uniform())); h = v + (x + normal() - v) * k\n"
        " s = spike(h - 1, atan(2)); return s, poisson(p * p) * h + uniform()\n v' = h * (1 - s) * bernoulli(p) }"})
    family.cells.push_back(held.emplace_back(intern(text)).get());
  return family;
}

Family loihi_cells() {
  Family family{.cells = {}, .types = {DType::i32}, .has_form = false};
  for (const bool ternary : {false, true})
    for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory})
      family.cells.push_back(&loihi_cell(ternary, form));
  return family;
}

// The number of values of each option.
Choice n_values(const Family& family, Direction direction) {
  const bool is_backward = direction == Direction::backward;
  Choice n;
  n.fill(1);
  n[cell] = static_cast<int>(family.cells.size());
  n[type] = static_cast<int>(family.types.size());
  n[steps] = n[neurons] = n[params] = 4;
  n[store_states] = 2;
  n[initial] = 3;
  if (family.has_form) {
    n[surrogate] = static_cast<int>(graph::surrogate_descriptions().size());
    n[soft_reset] = n[smooth] = n[undecayed_input] = 2;
  }
  if (family.has_form && is_backward) n[detach_reset] = 2;
  if (is_backward)
    n[grad_outputs] = n[grad_states] = n[wants] = 3;
  else
    n[save] = 2;
  return n;
}

std::set<Pair> all_pairs(const Choice& n) {
  std::set<Pair> pairs;
  for (int a = 0; a < n_options; ++a)
    for (int b = a + 1; b < n_options; ++b)
      for (int i = 0; i < n[a]; ++i)
        for (int j = 0; j < n[b]; ++j) pairs.emplace(a, i, b, j);
  return pairs;
}

template <class Visit> void for_each_pair(const Choice& choice, Visit&& visit) {
  for (int a = 0; a < n_options; ++a)
    for (int b = a + 1; b < n_options; ++b) visit(Pair{a, choice[a], b, choice[b]});
}

// Greedy: selects, from several random choices that contain an uncovered pair, the one with the most uncovered pairs.
std::vector<Choice> covering_choices(const Choice& n) {
  std::mt19937 random(20260101);
  std::set<Pair> uncovered = all_pairs(n);
  std::vector<Choice> list;
  while (!uncovered.empty()) {
    const auto [a, i, b, j] = *uncovered.begin();
    Choice best{};
    int most = -1;
    for (int attempt = 0; attempt < 64; ++attempt) {
      Choice choice;
      for (int option = 0; option < n_options; ++option)
        choice[option] = static_cast<int>(random() % static_cast<unsigned>(n[option]));
      choice[a] = i;
      choice[b] = j;
      int covered = 0;
      for_each_pair(choice, [&](const Pair& pair) { covered += uncovered.contains(pair); });
      if (covered > most) {
        most = covered;
        best = choice;
      }
    }
    for_each_pair(best, [&](const Pair& pair) { uncovered.erase(pair); });
    list.push_back(best);
  }
  return list;
}

// The view is absent (0), has full rows (1), or one element per row (2).
SequenceView view(int kind, std::int64_t time_stride) {
  if (kind == 0) return {};
  return {.data = somewhere(), .time_stride = time_stride, .neuron_stride = kind == 1 ? 1 : 0};
}

// The launches of a choice, and the data that they refer to.
class Call {
 public:
  Call(const Family& family, const Choice& choice)
      : choice_(choice),
        cell_(*family.cells[static_cast<std::size_t>(choice[cell])]),
        type_(family.types[static_cast<std::size_t>(choice[type])]),
        neurons_(std::array{1 << 22, 1000001, 1 << 15, 512}[static_cast<std::size_t>(choice[neurons])]),
        inputs_(cell_.inputs.size(), view(1, neurons_)),
        initial_(cell_.states.size()),
        params_(cell_.params.size()) {
    const auto stored = [&](int kind) { return kind == 1 ? type_ : compute_type(type_); };
    if (choice[initial] > 0)
      for (StateView& state : initial_) state = {somewhere(), stored(choice[initial])};
    for (std::size_t j = 0; j < params_.size(); ++j) {
      const bool is_tensor = choice[params] == 3 ? j % 2 == 0 : choice[params] > 0;
      // A scalar is shared by all neurons of a warp; a value per channel is repeated.
      const std::int64_t count = choice[params] == 2 ? neurons_ : choice[params] == 3 ? 64 : 1;
      if (is_tensor) params_[j] = {.data = somewhere(), .type = stored(choice[params]), .count = count};
    }
  }

  KernelSpec spec(Direction direction) const { return direction == Direction::forward ? forward() : backward(); }

 private:
  static constexpr int multiprocessors = 132;

  KernelSpec forward() const {
    ForwardLaunch launch;
    describe(launch);
    launch.checkpoints = choice_[save] == 1 ? somewhere() : nullptr;
    return kernels::plan(launch, multiprocessors).spec;
  }

  KernelSpec backward() const {
    const bool wants_inputs = choice_[wants] != 1, wants_others = choice_[wants] != 0;
    const std::vector<SequenceView> to_outputs(cell_.outputs.size(), view(choice_[grad_outputs], neurons_));
    const std::vector<SequenceView> to_states(cell_.states.size(),
                                              view(choice_[grad_states], choice_[store_states] == 1 ? neurons_ : 0));
    const std::vector<void*> of_inputs(cell_.inputs.size(), wants_inputs ? somewhere() : nullptr);
    std::vector<void*> of_initial, of_params;
    for (const StateView& state : initial_) of_initial.push_back(wants_others && state.data ? somewhere() : nullptr);
    for (const ParamView& param : params_) of_params.push_back(wants_others && param.data ? somewhere() : nullptr);

    BackwardLaunch launch;
    describe(launch);
    launch.grad_outputs = to_outputs;
    launch.grad_states = to_states;
    launch.grad_inputs = of_inputs;
    launch.grad_initial = of_initial;
    launch.grad_params = of_params;
    launch.any_grad_input = wants_inputs;
    for (const void* grad : of_params) launch.any_grad_param |= grad != nullptr;
    return kernels::plan(launch, multiprocessors).spec;
  }

  void describe(Launch& launch) const {
    launch.cell = &cell_;
    launch.form = {.hard_reset = choice_[soft_reset] == 0,
                   .detach_reset = choice_[detach_reset] == 1,
                   .spiking = choice_[smooth] == 0,
                   .decay_input = choice_[undecayed_input] == 0,
                   .surrogate = static_cast<SurrogateKind>(choice_[surrogate])};
    launch.type = type_;
    launch.steps = std::array{4, 16, 100, 128}[static_cast<std::size_t>(choice_[steps])];
    launch.neurons = neurons_;
    launch.checkpoint_length = cell_.checkpoint_length(type_);
    launch.store_states = choice_[store_states] == 1;
    launch.inputs = inputs_;
    launch.initial = initial_;
    launch.params = params_;
  }

  const Choice& choice_;
  const Cell& cell_;
  const DType type_;
  const std::int64_t neurons_;
  std::vector<SequenceView> inputs_;
  std::vector<StateView> initial_;
  std::vector<ParamView> params_;
};

// The maximum number of spilled bytes of kernels, with NVRTC 13.0. With free registers: 56 in backward passes in
// float64 (integrate_and_fire, sm_80); 64 for the sines of squarewave_fourier (adaptive_lif, sm_100 and sm_120).
// Without free registers: for Izhikevich's neuron with ten parameters per neuron, 40 in the forward pass (sm_80), and
// 864 in float64 if it is time-parallel and computes their gradients (sm_90); in time-parallel passes, 56 with 16
// warps, which have 128 registers per thread (qif, sm_90), 1760 in float64 for a smooth neuron, which tests of
// gradients use, with the primitive of erf eight times (sm_90), and 156 for a neuron that draws from every
// distribution, including the loops of Poisson's (sm_120); 40 in passes with several neurons per thread that sum
// gradients of parameters (qif, and adaptive_lif with multi_gaussian, sm_80 and sm_120).
constexpr int spilled_by_doubles = 56;
constexpr int spilled_by_sines = 64;
constexpr int spilled_by_ten_tensors = 40;
constexpr int spilled_by_ten_gradients = 864;
constexpr int spilled_by_sixteen_warps = 56;
constexpr int spilled_by_smooth_erf = 1760;
constexpr int spilled_by_draws = 156;
constexpr int spilled_by_sums = 40;

int allowed_spill(const KernelSpec& spec) {
  const kernels::LoopSpec& loop = spec.loop;
  const auto params =
      spec.places.items().subspan(spec.cell->inputs.size() + spec.cell->states.size(), spec.cell->params.size());
  if (loop.direction == Direction::forward) {
    const auto tensors =
        std::ranges::count_if(params, [](auto& place) { return place.operand != kernels::Operand::absent; });
    return tensors >= 10 ? spilled_by_ten_tensors : parked_bytes;
  }
  if (loop.form.surrogate == SurrogateKind::squarewave_fourier) return spilled_by_sines;
  const bool is_parallel = loop.schedule.segments > 1;
  const auto wanted = std::ranges::count(params, true, &kernels::Place::wanted);
  if (loop.type != DType::f64) {
    if (is_parallel && spec.cell->draws) return spilled_by_draws;
    if (loop.schedule.segments >= 16) return spilled_by_sixteen_warps;
    return loop.schedule.in_turns && wanted >= 3 ? spilled_by_sums : parked_bytes;
  }
  if (is_parallel && !loop.form.spiking && loop.form.surrogate == SurrogateKind::erf) return spilled_by_smooth_erf;
  return is_parallel && wanted >= 10 ? spilled_by_ten_gradients : spilled_by_doubles;
}

}  // namespace

std::vector<CoveredKernel> covering_list() {
  std::vector<CoveredKernel> list;
  std::unordered_set<KernelSpec, kernels::HashOfSpec> seen;
  for (const Family& family : {predefined_cells(), traced_cells(), loihi_cells()})
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      if (family.cells[0]->is_integer && direction == Direction::backward) continue;
      for (const Choice& choice : covering_choices(n_values(family, direction)))
        if (const KernelSpec spec = Call(family, choice).spec(direction); seen.insert(spec).second)
          list.push_back({print_source(spec), allowed_spill(spec)});
    }
  return list;
}

}  // namespace spikeforge::tests
