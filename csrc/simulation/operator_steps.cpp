#include "csrc/simulation/internal/operator_steps.h"
#include "csrc/jit/recorder.h"
#include "csrc/simulation/internal/plastic_operators.h"
#include "csrc/simulation/internal/spike_lists.h"
#include "ops/event.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
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
  const auto [rows, column] = input.rows(first, count);
  if (rows.defined()) input_.slice(0, 0, count).slice(1, column, column + rows.size(1)).copy_(rows);
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
    whole_drives_.push_back({.rates = spread(drive.rates), .weights = spread(drive.weights), .seed = drive.seed});
}

// Adds the drive. The drive of own neurons equals their part of the drive of the whole network.
at::Tensor OperatorSteps::driven(const at::Tensor& arriving) {
  at::Tensor x = arriving;
  if (!state_.partition.is_whole() && state_.size > 0 && !own_columns_.defined()) make_whole_drives();
  for (const PoissonLayer& drive : state_.partition.is_whole() ? state_.drives : whole_drives_) {
    const auto draw = [&](const at::Tensor& to, const at::Tensor& weights, const at::Tensor& rates) {
      return std::get<0>(
          poisson_({to.unsqueeze(0)}, {}, {weights, rates}, false, false, {}, {}, drive.seed, state_.step))[0][0];
    };
    x = state_.partition.is_whole()
            ? draw(x, drive.weights, drive.rates)
            : x.add(draw(at::zeros_like(drive.rates), drive.weights, drive.rates).index_select(0, own_columns_));
  }
  return x;
}

void OperatorSteps::advance(const at::Tensor& input) {
  at::Tensor arriving = take_arrivals_(state_.ring, state_.step);
  for (PlasticConnections& plastic : state_.plastic) plastic.operators().arrive(state_.step, arriving);
  if (state_.between.defined()) arriving.add_(take_arrivals_(state_.between, state_.step));
  if (state_.current.defined()) arriving.add_(state_.current);
  if (input.defined()) arriving.add_(input);
  arriving = driven(arriving);
  const at::Tensor inputs = arriving.view({state_.inputs, 1, state_.size});
  for (const Group& group : state_.groups) {
    if (group.size() == 0) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!group.cell->draws || state_.partition.is_whole(),
                                "Network: neurons that draw random numbers are shared by ranks on the CPU, and on GPUs "
                                "where sums need not be deterministic, but not so far by operators");
    std::vector<at::Tensor> mine;
    for (std::size_t k = 0; k < group.cell->inputs.size(); ++k)
      mine.push_back(inputs.select(0, static_cast<std::int64_t>(k)).narrow(1, group.begin, group.size()));
    const std::optional<at::Tensor> offset = group.seed ? std::optional(state_.step) : std::nullopt;
    const auto [outputs, states] =
        group.neuron(mine, group.states, group.params, false, false, {}, {}, group.seed, offset);
    state_.spikes.narrow(0, group.begin, group.size()).copy_(outputs[0][0]);
    for (std::size_t k = 0; k < states.size(); ++k) group.states[k].copy_(states[k]);  // graphs use the addresses
  }
  if (state_.silenced.defined()) state_.spikes.masked_fill_(state_.silenced, 0);
  deliver();
  for (PlasticConnections& plastic : state_.plastic) plastic.operators().fire(state_.step, state_.spikes);
  state_.step.add_(1);
}

// Deterministic sums are in fixed point, with a scale that depends on the largest weight and the number of connections.
// The last row, which has no connections, has an entry that accounts for the weights and connections of the other
// ranks, so that sums are the same for any number of ranks.
void OperatorSteps::deliver() {
  const std::int64_t rows = state_.matrix.indptr.numel() - 1;
  const Connections connections{state_.matrix.weights, state_.matrix.indices, state_.matrix.indptr, rows,
                                state_.columns};
  const bool has_own_weights = state_.matrix.weights.numel() != 1;
  const auto send = [&](const at::Tensor& x, const at::Tensor& ring) {
    event_mv_delayed_(
        connections, x, state_.matrix.delays, ring, state_.step,
        {.transpose = true, .graded = has_own_weights && state_.block > 0, .deterministic = state_.is_deterministic});
  };
  if (rows == state_.size) return send(state_.spikes, state_.ring);
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
