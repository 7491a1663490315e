#include "covering_list.h"

#include <spikeforge/kernels/multistep/loihi_spec.h>
#include <spikeforge/jit/spec_table.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace spikeforge::tests {
namespace {

// The options of a launch, each with its number of values.
enum Option {
  direction,
  neuron,
  type,
  surrogate,
  hard_reset,
  detach_reset,
  spiking,
  decay_input,
  steps,
  neurons,
  store_states,
  initial,
  params,
  save,
  grad_spikes,
  grad_states,
  wants,
  n_options
};
constexpr std::array<int, n_options> n_values = {2, 6, 4, 16, 2, 2, 2, 2, 4, 4, 2, 3, 4, 2, 3, 3, 3};

using Choice = std::array<int, n_options>;
using Pair = std::tuple<int, int, int, int>;  // option, value, option, value

// Each direction has a covering list of its own.
std::set<Pair> all_pairs(int fixed_direction) {
  std::set<Pair> pairs;
  for (int a = 0; a < n_options; ++a)
    for (int b = a + 1; b < n_options; ++b)
      for (int i = 0; i < n_values[a]; ++i)
        for (int j = 0; j < n_values[b]; ++j)
          if (a != direction || i == fixed_direction) pairs.emplace(a, i, b, j);
  return pairs;
}

template <class Visit>
void for_each_pair(const Choice& choice, Visit&& visit) {
  for (int a = 0; a < n_options; ++a)
    for (int b = a + 1; b < n_options; ++b) visit(Pair{a, choice[a], b, choice[b]});
}

// Greedy: of some random choices that contain an uncovered pair, the one with most of them.
std::vector<Choice> covering_choices(int fixed_direction) {
  std::mt19937 random(20260101);
  std::set<Pair> uncovered = all_pairs(fixed_direction);
  std::vector<Choice> list;
  while (!uncovered.empty()) {
    const auto [a, i, b, j] = *uncovered.begin();
    Choice best{};
    int most = -1;
    for (int attempt = 0; attempt < 64; ++attempt) {
      Choice choice;
      for (int option = 0; option < n_options; ++option)
        choice[option] = static_cast<int>(random() % static_cast<unsigned>(n_values[option]));
      choice[direction] = fixed_direction;
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

// Never read: only whether a pointer is null, and its alignment, decide a spec.
void* somewhere() { return reinterpret_cast<void*>(std::uintptr_t{1} << 20); }

SequenceView view(int kind, std::int64_t time_stride) {
  if (kind == 0) return {};
  return {.data = somewhere(), .time_stride = time_stride, .neuron_stride = kind == 1 ? 1 : 0};
}

constexpr std::array<int, 6> states_of = {1, 1, 1, 1, 1, 2};
constexpr std::array<int, 6> params_of = {2, 3, 3, 6, 6, 10};

void describe(MultistepLaunch& launch, const Choice& choice) {
  launch.neuron = static_cast<NeuronKind>(choice[neuron]);
  launch.n_states = states_of[choice[neuron]];
  launch.n_params = params_of[choice[neuron]];
  launch.options = {.hard_reset = choice[hard_reset] == 1,
                    .detach_reset = choice[detach_reset] == 1,
                    .spiking = choice[spiking] == 1,
                    .decay_input = choice[decay_input] == 1};
  launch.surrogate = static_cast<SurrogateKind>(choice[surrogate]);
  launch.type = static_cast<DType>(choice[type]);
  launch.steps = std::array{4, 16, 100, 128}[choice[steps]];
  launch.neurons = std::array{1 << 22, 1000001, 1 << 15, 512}[choice[neurons]];
  launch.checkpoint_length = jit::checkpoint_length(launch.neuron, launch.type);
  launch.store_states = choice[store_states] == 1;
  launch.x = view(1, launch.neurons);
  for (int s = 0; s < launch.n_states; ++s)
    if (choice[initial] > 0)
      launch.initial[s] = {somewhere(), choice[initial] == 1 ? launch.type : compute_type(launch.type)};
  for (int j = 0; j < launch.n_params; ++j) {
    const bool is_tensor = choice[params] == 3 ? j % 2 == 0 : choice[params] > 0;
    if (is_tensor)
      launch.params[j] = {.data = somewhere(),
                          .type = choice[params] == 1 ? launch.type : compute_type(launch.type),
                          .count = choice[params] == 2 ? launch.neurons : 1};
  }
}

constexpr int multiprocessors = 132;

jit::KernelSpec spec_of(const Choice& choice) {
  if (choice[direction] == 0) {
    ForwardLaunch launch;
    describe(launch, choice);
    launch.checkpoints = choice[save] == 1 ? somewhere() : nullptr;
    return jit::forward_spec(launch, jit::forward_schedule(launch, multiprocessors));
  }
  BackwardLaunch launch;
  describe(launch, choice);
  launch.grad_spikes = view(choice[grad_spikes], launch.neurons);
  const bool wants_x = choice[wants] != 1;
  const bool wants_others = choice[wants] != 0;
  if (wants_x) launch.grad_x = somewhere();
  for (int s = 0; s < launch.n_states; ++s) {
    launch.grad_states[s] = view(choice[grad_states], launch.store_states ? launch.neurons : 0);
    if (wants_others && launch.initial[s].data) launch.grad_initial[s] = somewhere();
  }
  for (int j = 0; j < launch.n_params; ++j)
    if (wants_others && launch.params[j].data) {
      launch.grad_params[j] = somewhere();
      launch.any_grad_param = true;
    }
  return jit::backward_spec(launch, jit::backward_schedule(launch, multiprocessors));
}

// Every cell with every way through the loop.
std::vector<jit::LoihiSpec> loihi_specs() {
  std::vector<jit::LoihiSpec> list;
  for (const bool ternary : {false, true})
    for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory})
      for (const auto& [steps, neurons] : {std::pair{16, 1 << 22}, {100, 1000001}, {128, 1 << 15}, {4, 512}}) {
        LoihiLaunch launch;
        launch.ternary = ternary;
        launch.form = form;
        launch.steps = steps;
        launch.neurons = neurons;
        launch.store_states = steps == 100;
        launch.x = view(1, neurons);
        if (steps != 16)
          for (StateView& state : launch.initial) state = {somewhere(), DType::i32};
        if (steps >= 100)
          for (ParamView& param : launch.params)
            param = {.data = somewhere(), .type = DType::i32, .count = steps == 100 ? neurons : 1};
        list.push_back(jit::loihi_spec(launch, jit::forward_schedule(launch, multiprocessors)));
      }
  return list;
}

}  // namespace

std::vector<jit::KernelSource> covering_list() {
  std::vector<jit::KernelSource> list;
  std::unordered_set<jit::KernelSpec, jit::HashOfSpecBytes<jit::KernelSpec>> seen;
  for (const int fixed_direction : {0, 1})
    for (const Choice& choice : covering_choices(fixed_direction))
      if (const jit::KernelSpec spec = spec_of(choice); seen.insert(spec).second)
        list.push_back(print_source(spec));
  for (const jit::LoihiSpec& spec : loihi_specs()) list.push_back(print_source(spec));
  return list;
}

}  // namespace spikeforge::tests
