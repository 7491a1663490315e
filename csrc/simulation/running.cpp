#include "csrc/simulation/internal/running.h"
#include "csrc/jit/recorder.h"
#include "csrc/simulation/internal/cpu_steps.h"
#include "csrc/simulation/internal/digest.h"
#include "csrc/simulation/internal/gpu_steps.h"
#include "csrc/simulation/internal/operator_steps.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace spikeforge::simulation {
namespace {

std::int64_t digest_of(const std::vector<StateProbe>& recorded) {
  Digest digest;
  for (const StateProbe& probe : recorded) {
    digest.add(probe.population.begin).add(probe.state).add(std::ssize(probe.neurons));
    for (const std::int64_t neuron : probe.neurons) digest.add(neuron);
  }
  return digest.sum();
}

at::Tensor recorded_state(std::int64_t steps, std::int64_t neurons, const at::TensorOptions& options) {
  try {
    return at::empty({steps, neurons}, options);
  } catch (const c10::OutOfMemoryError&) {  // a GPU is out of memory; the message is sufficient
    throw;
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "simulate: states must fit into memory, but one of ", neurons, " neurons in ", steps,
                " steps does not: record fewer neurons, or simulate fewer steps in a call");
  }
}

std::string described(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  const std::string numbers = c10::str(t.scalar_type(), " ", t.sizes(), " on ", t.device());
  if (t.layout() != at::kStrided) return c10::str(t.layout(), " ", numbers);
  return t.is_contiguous() ? numbers : numbers + ", not contiguous";
}

// Throws ValueError unless `given` has a tensor for each probe, contiguous [steps, requested neurons] with these
// options.
void check_recorded(at::TensorList given, const std::vector<Probe>& probes, std::int64_t steps,
                    const at::TensorOptions& options) {
  TORCH_CHECK_VALUE(given.size() == probes.size(), "simulate: into must have a tensor for each of ", probes.size(),
                    " recorded states, but has ", given.size());
  for (std::size_t k = 0; k < probes.size(); ++k) {
    const at::Tensor& t = given[k];
    const std::int64_t sizes[] = {steps, probes[k].requested};
    const at::ScalarType type = options.dtype().toScalarType();
    const bool fits = t.defined() && t.layout() == at::kStrided && t.sizes() == c10::IntArrayRef(sizes) &&
                      t.is_contiguous() && t.scalar_type() == type && t.device() == options.device();
    TORCH_CHECK_VALUE(fits, "simulate: into[", k, "] must be a contiguous ", type, " ", c10::IntArrayRef(sizes), " on ",
                      options.device(), ", but is ", described(t));
  }
}

// A std::bad_alloc with a message.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string words) : words_(std::move(words)) {}
  const char* what() const noexcept override { return words_.c_str(); }

 private:
  const std::string words_;
};

}  // namespace

Running::Running(const Description& description, std::int64_t number)
    : guard_(description, number), state_(build_state(description, guard_)) {
  weights_at_ = state_.matrix.weights.const_data_ptr();
}

Running::~Running() = default;

// Operators run the steps if a kernel pack is recorded, because they add their kernels to it.
Engine& Running::engine() {
  const bool uses_operators = uses_operators_ || jit::recorder() != nullptr;
  std::unique_ptr<Engine>& engine = uses_operators ? operators_ : engine_;
  if (engine == nullptr && !uses_operators && state_.device.is_cpu())
    engine = std::make_unique<CpuSteps>(state_, guard_);
  if (engine == nullptr && !uses_operators) engine = GpuSteps::make(state_, guard_);
  if (engine == nullptr) engine = std::make_unique<OperatorSteps>(state_, guard_);
  return *engine;
}

void Running::check_weights() const {
  const at::Tensor& weights = state_.matrix.weights;
  const bool are_there = weights.const_data_ptr() == weights_at_ && weights.storage().nbytes() >= weights.nbytes();
  const bool are_all_there =
      std::ranges::all_of(state_.plastic, [](const PlasticConnections& p) { return p.are_there(); });
  TORCH_CHECK_VALUE(are_there && are_all_there,
                    "Network: the weights of a built network may be written, but not resized");
}

Probe Running::probe(const StateProbe& requested) {
  Probe probe = state_.probe(requested);
  if (guard_.is_shared()) probe.most = guard_.exchange().most_of_a_rank(requested);
  return probe;
}

RecordedStates Running::begin(std::int64_t steps, const std::vector<StateProbe>& recorded, bool own,
                              std::optional<std::vector<at::Tensor>> into) {
  guard_.check_is_whole(Topic::simulate);
  RecordedStates states;
  const auto prepare = [&]() -> Numbers {
    check_weights();
    for (const StateProbe& requested : recorded) states.probes.push_back(probe(requested));
    if (into) check_recorded(*into, states.probes, steps, state_.options());
    if (into) states.whole = std::move(*into);
    for (const Probe& probe : states.probes) {
      if (!into) states.whole.push_back(recorded_state(steps, probe.requested, state_.options()));
      if (own && guard_.ranks() != nullptr)
        states.own.push_back(recorded_state(steps, probe.neurons.numel(), state_.options()));
    }
    if (guard_.ranks() == nullptr) states.own = states.whole;
    if (own && state_.device.is_cpu()) engine().prepare();  // the first use on a GPU is collective
    return {state_.steps(), steps, guard_.ranks() == nullptr ? 0 : digest_of(recorded)};
  };
  const std::vector<Numbers> received = guard_.gather_notices(Topic::simulate, prepare);
  const Numbers& first = received[0];
  for (std::size_t rank = 1; rank < received.size(); ++rank) {
    const Numbers& theirs = received[rank];
    TORCH_CHECK(theirs[0] == first[0] && theirs[1] == first[1], "Network: rank ", rank, " of ", received.size(),
                " simulates ", steps_in_words(theirs[0], theirs[1]), ", but rank 0 ",
                steps_in_words(first[0], first[1]), ": all ranks must make the same calls");
    TORCH_CHECK(theirs[2] == first[2], "Network: rank ", rank, " of ", received.size(),
                " records other states than rank 0: all ranks must make the same calls");
  }
  return states;
}

Recording Running::in_whole(const RecordedStates& states, Spikes own) {
  for (std::size_t k = 0; guard_.ranks() != nullptr && k < states.probes.size(); ++k)
    guard_.join(Topic::recorded_states, states.probes[k].most, states.whole[k], states.own[k], states.probes[k].places);
  if (!state_.partition.is_whole())
    own.neurons = state_.partition.numbers().to(own.neurons.device()).index_select(0, own.neurons);
  Recording recording{.steps = std::move(own.steps), .neurons = std::move(own.neurons), .states = {}};
  for (const at::Tensor& state : states.whole) recording.states.push_back(state_.by_copies(state));
  if (state_.copies > 1) {
    recording.copies = recording.neurons.floor_divide(std::max<std::int64_t>(state_.copy_size, 1));
    recording.neurons = recording.neurons - recording.copies * state_.copy_size;
  }
  return recording;
}

Recording Running::simulate(std::int64_t steps, const SimulateOptions& options,
                            std::optional<std::vector<at::Tensor>> into) {
  TORCH_CHECK_VALUE(steps >= 0, "simulate: steps must not be negative, but is ", steps);
  const ExternalInput input(state_, steps, options.inputs);
  const RecordedStates states = begin(steps, options.states, /*own=*/true, std::move(into));
  const std::int64_t first = state_.steps();
  try {
    return guard_.take_steps([&] {
      Recording recording = in_whole(states, engine().run({steps, input}, options.spikes, states));
      recording.first_step = first;
      recording.step_count = steps;
      return recording;
    });
  } catch (const std::bad_alloc&) {
    const std::string what = "simulate: out of memory in " + steps_in_words(first, steps);
    if (!guard_.is_whole())
      throw OutOfMemory(what + ", in the middle of a step: load a saved state, or build the network again");
    throw OutOfMemory(what + ", and the recording is lost; the network's state is that after step " +
                      std::to_string(state_.steps()) + ". Spikes take 16 bytes each: simulate fewer steps in a call");
  }
}

at::Tensor Running::step(std::int64_t steps, const std::vector<StepInput>& inputs) {
  TORCH_CHECK_VALUE(steps >= 0, "step: steps must not be negative, but is ", steps);
  TORCH_CHECK_NOT_IMPLEMENTED(
      guard_.ranks() == nullptr,
      "step: several ranks share this network: use simulate, which returns the spikes of a rank");
  guard_.check_is_whole();
  check_weights();
  const ExternalInput input(state_, steps, inputs);
  const auto options = state_.options().dtype(at::kBool);
  at::Tensor fired =
      state_.device.is_cpu() ? at::zeros({steps, state_.size}, options) : at::empty({steps, state_.size}, options);
  guard_.take_steps([&] { engine().step({steps, input}, fired); });
  return state_.by_copies(fired);
}

void Running::reset_engines() {
  engine_ = nullptr;
  operators_ = nullptr;
}

void Running::set_inputs(const Description& description) {
  simulation::set_drives(state_, description);
  simulation::set_currents(state_, description);
  reset_engines();
}

void Running::set_param(const Population& population, const std::string& name, const at::Tensor& value) {
  state_.set_param(population, name, value);
  reset_engines();
}

void Running::silence(const Population& population, const at::Tensor& neurons, bool silent,
                      std::optional<std::int64_t> copy) {
  const Slice& slice = state_.partition[state_.number_of(population)];
  TORCH_CHECK_TYPE(at::isIntegralType(neurons.scalar_type(), /*includeBool=*/false) && neurons.dim() == 1,
                   "silence: neurons of ", population.name, " must be whole numbers in a tensor [count]");
  const at::Tensor numbers = neurons.to(c10::kCPU, at::kLong);
  const bool exist = numbers.numel() == 0 || (numbers.min().item<std::int64_t>() >= 0 &&
                                              numbers.max().item<std::int64_t>() < population.size());
  TORCH_CHECK_VALUE(exist, "silence: neurons of ", population.name, " must be from 0 to ", population.size() - 1);
  if (copy) state_.check_copy(*copy);
  const bool is_first = !state_.silenced.defined();
  if (is_first) state_.silenced = at::zeros({state_.size}, state_.options().dtype(at::kBool));
  const at::Tensor places = numbers.add(population.begin - slice.begin);
  const at::Tensor own = places.masked_select(places.ge(0).logical_and_(places.lt(slice.size())));
  const at::Tensor all = state_.silenced.view({state_.copies, state_.copy_size});
  (copy ? all.narrow(0, *copy, 1) : all).index_fill_(1, own.add(slice.first).to(state_.device), silent ? 1 : 0);
  if (is_first) reset_engines();
}

std::vector<at::Tensor> Running::save_state() {
  guard_.check_is_whole(Topic::state);
  std::vector<Changing> now;
  std::vector<at::Tensor> copies;
  const auto is_part = [&](const Changing& c) { return guard_.ranks() != nullptr && c.places.defined(); };
  const auto prepare = [&]() -> Numbers {
    now = state_.changing();
    for (const Changing& c : now) {
      std::vector<std::int64_t> sizes = c.tensor.sizes().vec();
      if (is_part(c)) sizes.back() = c.whole;
      copies.push_back(is_part(c) ? at::zeros(sizes, c.tensor.options()) : c.tensor.clone());
    }
    return {state_.steps()};
  };
  const std::vector<Numbers> received = guard_.gather_notices(Topic::state, prepare);
  for (std::size_t rank = 1; rank < received.size(); ++rank)
    TORCH_CHECK(received[rank][0] == received[0][0], "Network: rank ", rank, " of ", received.size(), " is at step ",
                received[rank][0], ", but rank 0 at step ", received[0][0], ": they have no state together");
  for (std::size_t i = 0; i < now.size(); ++i)
    if (is_part(now[i]))
      guard_.join(Topic::state, std::min(now[i].whole, state_.inputs * guard_.exchange().most_neurons()), copies[i],
                  now[i].tensor, now[i].places);
  return copies;
}

void Running::load_state(at::TensorList given) {
  std::vector<Changing> own;
  std::string wrong;
  std::int64_t step = 0;
  const std::vector<Numbers> received = guard_.gather_notices(Topic::load_state, [&]() -> Numbers {
    own = state_.changing();
    if (own.size() != given.size())
      wrong = c10::str("state must have ", own.size(), " tensors, those of this network, but has ", given.size());
    for (std::size_t i = 0; wrong.empty() && i < own.size(); ++i) {
      const at::Tensor &mine = own[i].tensor, &theirs = given[i];
      std::vector<std::int64_t> sizes = mine.sizes().vec();
      if (own[i].places.defined()) sizes.back() = own[i].whole;
      const bool fits = theirs.defined() && theirs.layout() == at::kStrided && !theirs.is_meta() &&
                        theirs.sizes() == c10::IntArrayRef(sizes) && theirs.scalar_type() == mine.scalar_type();
      if (!fits)
        wrong = c10::str("state[", i, "] must be a dense ", mine.scalar_type(), " ", c10::IntArrayRef(sizes),
                         ", but is ", described(theirs));
    }
    constexpr std::int64_t most_steps = std::int64_t{1} << 62;
    if (wrong.empty()) {
      step = given[1].item<std::int64_t>();
      if (step < 0 || step >= most_steps) wrong = c10::str("a state's step must be from 0 to 2^62, but is ", step);
    }
    Digest digest;
    for (std::size_t i = 0; guard_.ranks() != nullptr && wrong.empty() && i < given.size(); ++i) digest.add(given[i]);
    return {wrong.empty() ? 1 : 0, step, digest.sum(), guard_.is_whole() ? 1 : 0};
  });
  bool all_are_whole = true;
  for (std::size_t rank = 0; rank < received.size(); ++rank) {
    const Numbers &theirs = received[rank], &first = received[0];
    all_are_whole = all_are_whole && theirs[3] == 1;
    if (!wrong.empty()) continue;
    TORCH_CHECK_VALUE(theirs[0] == 1, "Network: rank ", rank, " of ", received.size(),
                      " was given a state that it cannot load");
    TORCH_CHECK_VALUE(theirs[1] == first[1], "Network: rank ", rank, " of ", received.size(), " loads a state of step ",
                      theirs[1], ", but rank 0 one of step ", first[1]);
    TORCH_CHECK_VALUE(theirs[2] == first[2], "Network: rank ", rank, " of ", received.size(),
                      " loads other numbers than rank 0, of the same step");
  }
  TORCH_CHECK_VALUE(wrong.empty(), "Network: ", wrong);
  if (!all_are_whole) {  // exchanges may have different sizes on different ranks after a failed call
    reset_engines();
    if (guard_.is_shared()) guard_.exchange().forget();
  }
  guard_.take_steps([&] {
    guard_.set_between_steps(false);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const at::Tensor& places = own[i].places;
      const bool is_part = guard_.ranks() != nullptr && places.defined();
      own[i].tensor.copy_(is_part ? given[i].index_select(-1, places.to(given[i].device())) : given[i]);
    }
  });
  guard_.set_whole();
}

}  // namespace spikeforge::simulation
