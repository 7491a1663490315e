#include "csrc/simulation/internal/operator_steps.h"
#include "csrc/jit/recorder.h"
#include "csrc/simulation/internal/plastic_operators.h"
#include "csrc/simulation/internal/spike_lists.h"
#include "ops/event.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace spikeforge::simulation {
namespace {

constexpr std::int64_t steps_at_once = 20;  // run before their recording is listed

}  // namespace

OperatorSteps::OperatorSteps(NetworkState& state, CallGuard& guard)
    : state_(state),
      guard_(guard),
      poisson_("neuron poisson_input(x;; weight, rate) { return x + weight * poisson(rate) }") {}

Spikes OperatorSteps::run(const Steps& steps, bool spikes, const RecordedStates& states) {
  SpikeLists lists(state_.device, state_.steps());
  record(spikes, states.probes);
  run_pieces(steps, [&](std::int64_t done, std::int64_t count) {
    if (spikes) lists.add(fired_, done, count);
    for (std::size_t k = 0; k < states.own.size(); ++k)
      states.own[k].slice(0, done, done + count).copy_(states_[k].slice(0, 0, count));
  });
  return lists.take();
}

void OperatorSteps::step(const Steps& steps, const at::Tensor& fired) {
  record(/*spikes=*/true, {});
  run_pieces(steps, [&](std::int64_t done, std::int64_t count) {
    fired.slice(0, done, done + count).copy_(fired_.slice(0, 0, count));
  });
}

// Calls recorded(done, count) after each piece.
template <class Recorded> void OperatorSteps::run_pieces(const Steps& steps, const Recorded& recorded) {
  guard_.expect(steps.count);
  for (std::int64_t done = 0; done < steps.count;) {
    const std::int64_t count = std::min(steps_at_once, steps.count - done);
    if (!steps.input.empty()) set_input(steps.input, done, count);
    guard_.set_between_steps(false);
    run_piece(count, !steps.input.empty());
    guard_.end_step(/*is_last=*/done + count == steps.count);
    recorded(done, count);
    done += count;
  }
}

void OperatorSteps::set_input(const ExternalInput& input, std::int64_t first, std::int64_t count) {
  if (!input_.defined()) input_ = at::empty({steps_at_once, state_.columns}, state_.options());
  input_.zero_();
  input_.slice(0, 0, count).index_copy_(1, input.indices(), input.rows(first, count));
}

// Allocates tensors for the recording of a piece, and keeps those of an earlier call with equal probes, and its graph.
void OperatorSteps::record(bool spikes, const std::vector<Probe>& probes) {
  const auto is_same = [](const Probe& a, const Probe& b) {
    return a.group == b.group && a.state == b.state && a.neurons.equal(b.neurons);
  };
  if (fired_.defined() && (fired_.size(0) > 0) == spikes && std::ranges::equal(probes_, probes, is_same)) return;
  graph_ = nullptr;
  probes_ = probes;
  states_.clear();
  fired_ = at::zeros({spikes ? steps_at_once : 0, state_.size}, state_.options().dtype(at::kBool));
  for (const Probe& probe : probes_)
    states_.push_back(at::zeros({steps_at_once, probe.neurons.numel()}, state_.options()));
}

void OperatorSteps::run_piece(std::int64_t steps, bool has_input) {
  const auto run = [&] {
    for (std::int64_t i = 0; i < steps; ++i) {
      advance(has_input ? input_.select(0, i) : at::Tensor());
      if (fired_.size(0) != 0) {
        at::Tensor row = fired_.select(0, i);
        at::gt_out(row, state_.spikes, 0);
      }
      for (std::size_t k = 0; k < probes_.size(); ++k) {
        at::Tensor row = states_[k].select(0, i);
        at::index_select_out(row, probes_[k].group->states[probes_[k].state], 0, probes_[k].neurons);
      }
    }
  };
  const bool can_be_graph =
      state_.device.is_cuda() && steps == steps_at_once && !has_input && jit::recorder() == nullptr;
  if (can_be_graph && has_run_ && graph_ == nullptr) graph_ = std::make_unique<LaunchGraph>(fired_, run);
  if (can_be_graph && graph_ != nullptr) return graph_->replay();
  run();
  has_run_ = true;
}

void OperatorSteps::make_whole_drives() {
  own_columns_ = state_.partition.whole_columns(state_.inputs).to(state_.ring.device());
  const auto spread = [&](const at::Tensor& own) {
    return at::zeros({state_.inputs * state_.partition.whole()}, own.options()).index_copy_(0, own_columns_, own);
  };
  for (const PoissonLayer& drive : state_.drives)
    whole_drives_.push_back({.rates = spread(drive.rates), .weights = spread(drive.weights), .seeds = drive.seeds});
}

// Adds the drive of each copy. The drive of own neurons equals their part of the drive of the whole network.
at::Tensor OperatorSteps::driven(const at::Tensor& arriving) {
  if (state_.drives.empty()) return arriving;
  std::vector<at::Tensor> copies = arriving.unbind(0);
  if (!state_.partition.is_whole() && state_.size > 0 && !own_columns_.defined()) make_whole_drives();
  for (const PoissonLayer& drive : state_.partition.is_whole() ? state_.drives : whole_drives_) {
    const auto draw = [&](std::size_t copy, const at::Tensor& to, const at::Tensor& weights, const at::Tensor& rates) {
      return std::get<0>(poisson_({to.unsqueeze(0)}, {}, {weights, rates}, false, false, {}, {}, drive.seeds[copy],
                                  state_.step))[0][0];
    };
    if (!state_.partition.is_whole()) {
      const at::Tensor drawn = draw(0, at::zeros_like(drive.rates), drive.weights, drive.rates);
      copies[0] = copies[0].add(drawn.index_select(0, own_columns_));
      continue;
    }
    const std::vector<at::Tensor> weights = drive.weights.chunk(state_.copies),
                                  rates = drive.rates.chunk(state_.copies);
    for (std::size_t copy = 0; copy < copies.size(); ++copy)
      copies[copy] = draw(copy, copies[copy].contiguous(), weights[copy], rates[copy]);
  }
  return copies.size() == 1 ? copies[0].unsqueeze(0) : at::stack(copies);
}

void OperatorSteps::advance(const at::Tensor& input) {
  const auto of_copies = [&](const at::Tensor& t) { return t.view({state_.copies, t.size(0) / state_.copies}); };
  at::Tensor arriving = of_copies(take_arrivals_(state_.ring, state_.step));
  for (std::size_t i = 0; i < state_.plastic.size(); ++i)
    state_.plastic[i].operators().arrive(state_.step, arriving[static_cast<std::int64_t>(i) % state_.copies]);
  if (state_.between.defined()) arriving.add_(take_arrivals_(state_.between, state_.step));
  if (state_.current.defined()) arriving.add_(of_copies(state_.current));
  if (input.defined()) arriving.add_(of_copies(input));
  const at::Tensor inputs = driven(arriving).view({state_.copies, state_.inputs, state_.copy_size});
  const at::Tensor spikes = of_copies(state_.spikes);
  for (const Group& group : state_.groups) {
    if (group.size() == 0) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!group.cell->draws || state_.partition.is_whole(),
                                "Network: neurons that draw random numbers are shared by ranks on the CPU, and on GPUs "
                                "where sums need not be deterministic, but not so far by operators");
    // Copies with random numbers are stepped one by one, because they have different seeds.
    const std::int64_t at_once = group.seeds.empty() ? state_.copies : 1, size = group.size();
    for (std::int64_t copy = 0; copy < state_.copies; copy += at_once) {
      const auto of_neurons = [&](const at::Tensor& t) {
        return t.dim() == 0 ? t : t.narrow(0, copy * size, at_once * size);
      };
      std::vector<at::Tensor> mine, before, params;
      for (std::size_t k = 0; k < group.cell->inputs.size(); ++k)
        mine.push_back(inputs.select(1, static_cast<std::int64_t>(k))
                           .narrow(0, copy, at_once)
                           .narrow(1, group.begin, size)
                           .reshape({1, at_once * size}));
      for (const at::Tensor& state : group.states) before.push_back(of_neurons(state));
      for (const at::Tensor& param : group.params) params.push_back(of_neurons(param));
      std::optional<at::Tensor> seed, offset;
      if (!group.seeds.empty()) seed = group.seeds[static_cast<std::size_t>(copy)];
      if (!group.seeds.empty()) offset = state_.step;
      const auto [outputs, states] = group.neuron(mine, before, params, false, false, {}, {}, seed, offset);
      spikes.narrow(0, copy, at_once).narrow(1, group.begin, size).copy_(outputs[0][0].view({at_once, size}));
      for (std::size_t k = 0; k < states.size(); ++k) before[k].copy_(states[k]);  // graphs use the addresses
    }
  }
  if (state_.silenced.defined()) state_.spikes.masked_fill_(state_.silenced, 0);
  deliver();
  for (std::size_t i = 0; i < state_.plastic.size(); ++i)
    state_.plastic[i].operators().fire(state_.step, spikes[static_cast<std::int64_t>(i) % state_.copies]);
  state_.step.add_(1);
}

// Deterministic sums are in fixed point, with a scale that depends on the largest weight and the number of connections.
// The last row, which has no connections, has an entry that accounts for the weights and connections of the other
// ranks, so that sums are the same for any number of ranks.
void OperatorSteps::deliver() {
  const std::int64_t rows = state_.matrix.indptr.numel() - 1;
  const Connections connections{state_.matrix.weights, state_.matrix.indices, state_.matrix.indptr, rows,
                                state_.copy_columns};
  const bool has_own_weights = state_.matrix.weights.numel() != 1;
  const auto send = [&](const at::Tensor& x, const at::Tensor& ring) {
    event_mv_delayed_(
        connections, state_.by_copies(x), state_.matrix.delays, state_.by_copies(ring), state_.step,
        {.transpose = true, .graded = has_own_weights && state_.block > 0, .deterministic = state_.is_deterministic});
  };
  if (rows == state_.copy_size) return send(state_.spikes, state_.ring);
  const std::int64_t whole = state_.partition.whole();
  const at::Tensor fired = state_.spikes.gt(0).to(state_.spikes.scalar_type());
  const at::Tensor of_all = guard_.ranks() == nullptr ? fired : joined_spikes(fired);
  at::Tensor x = at::zeros({rows}, state_.spikes.options());
  if (has_own_weights) x.slice(0, rows - 1).fill_(std::ldexp(1.0, state_.doublings));
  x.slice(0, 0, state_.size).copy_(fired);
  if (state_.between.defined()) {
    send(x, state_.ring);
    x.slice(0, 0, state_.size).zero_();
  }
  x.slice(0, state_.size, state_.size + whole).copy_(of_all);
  send(x, state_.between.defined() ? state_.between : state_.ring);
}

// Combines the spikes of all ranks. On a GPU, failures are not read, because that would wait for the host.
at::Tensor OperatorSteps::joined_spikes(const at::Tensor& own) {
  const auto& slices = guard_.exchange().slices();
  const at::Tensor all = guard_.gather_spikes(own);
  for (std::int64_t rank = 0; state_.device.is_cpu() && rank < all.size(0); ++rank)
    if (all.const_data_ptr<std::uint8_t>()[rank * all.size(1)] != 0)
      throw RankFailed(*guard_.ranks(), rank, Failure::within_step);
  guard_.others_throw_too() = false;
  at::Tensor joined = at::empty({state_.partition.whole()}, own.options());
  for (std::size_t rank = 0; rank < slices.size(); ++rank)
    for (const Slice& slice : slices[rank])
      joined.slice(0, slice.begin, slice.end)
          .copy_(all[static_cast<std::int64_t>(rank)].slice(0, 1 + slice.first, 1 + slice.first + slice.size()));
  return joined;
}

}  // namespace spikeforge::simulation
