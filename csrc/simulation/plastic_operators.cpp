#include "csrc/simulation/internal/plastic_operators.h"
#include "csrc/graph/synapse_parts.h"
#include "csrc/simulation/internal/plastic.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

namespace spikeforge::simulation {

PlasticOperators::PlasticOperators(PlasticConnections& connections, bool deterministic)
    : connections_(connections), deterministic_(deterministic) {
  const graph::SynapseParts parts = graph::parts_of(connections.synapse());
  before_ = graph::print(parts.before);
  arrival_ = graph::print(parts.arrival);
  after_ = graph::print(parts.after);
  has_more_ = parts.after.each_step || connections.synapse().post ||
              std::ranges::any_of(parts.after.on_signal, [](const auto& block) { return block.has_value(); });
  make_lines();
  const at::TensorOptions of_indices = lines_.indices.options(), longs = of_indices.dtype(at::kLong),
                          flags = of_indices.dtype(at::kBool);
  unconnected_ = {.weights = connections.states_[0].slice(0, 0, 0),
                  .indices = at::empty({0}, of_indices),
                  .indptr = at::zeros({connections.rows_ + 1}, longs),
                  .rows = connections.rows_,
                  .cols = 0,
                  .unchecked = true};
  no_columns_ = {at::empty({0}, of_indices), at::zeros({1}, longs), at::empty({0}, longs)};
  no_line_ = at::zeros({lines_.rows}, flags);
  no_column_ = at::zeros({lines_.cols}, flags);
  nobody_ = at::empty({0}, flags);
}

// Splits rows into lines. The connections of a row are already sorted by their delays.
void PlasticOperators::make_lines() {
  const PlasticConnections& c = connections_;
  const std::int64_t count = std::ssize(c.delays_), lines = c.rows_ * count;
  TORCH_CHECK_VALUE(lines <= std::numeric_limits<std::int32_t>::max(), "Network: ", c.rows_, " sources with ", count,
                    " different delays of connections that learn are more than 2^31");
  at::Tensor indptr = c.matrix_.indptr;
  delays_ = at::tensor(c.delays_, at::kLong).to(indptr.device());
  if (count > 1) {
    const at::Tensor row = at::repeat_interleave(at::arange(c.rows_, indptr.options()), indptr.diff());
    const at::Tensor line = row.mul(count).add_(at::searchsorted(delays_, c.matrix_.delays.to(at::kLong)));
    indptr = at::constant_pad_nd(at::bincount(line, {}, lines).cumsum(0), {1, 0});
  }
  lines_ = {.weights = c.states_[0],
            .indices = c.matrix_.indices,
            .indptr = indptr,
            .rows = lines,
            .cols = c.cols_,
            .unchecked = true};
  columns_ = by_columns(lines_);
}

// Returns the values of a ring [steps, rows] that lines read in this step, [lines].
at::Tensor PlasticOperators::steps_ago(const at::Tensor& ring, const at::Tensor& step) const {
  const at::Tensor slots = (step - delays_).remainder(ring.size(0));
  return ring.index_select(0, slots).t().reshape({-1});
}

std::vector<at::Tensor> PlasticOperators::traces(const std::vector<at::Tensor>& rings, const at::Tensor& step) const {
  const PlasticConnections& c = connections_;
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < rings.size(); ++i)
    all.push_back(c.synapse().traces[i].after ? c.after_[i] : steps_ago(rings[i], step));
  return all;
}

std::vector<at::Tensor> PlasticOperators::states() const {
  std::vector<at::Tensor> all = connections_.states_;
  if (connections_.last_.defined()) all.push_back(connections_.last_);
  return all;
}

std::vector<std::optional<at::Tensor>> PlasticOperators::signals() const {
  std::vector<std::optional<at::Tensor>> all;
  for (const at::Tensor& signal : connections_.signals_)
    all.push_back(signal.defined() ? std::optional(signal) : std::nullopt);
  return all;
}

at::Tensor PlasticOperators::run(const std::string& rule, const std::vector<at::Tensor>& traces, const at::Tensor& pre,
                                 const at::Tensor& post, PlasticOptions options) const {
  options.params = connections_.described_.params;
  options.signals = signals();
  return plastic_step_(rule, states(), traces, lines_, columns_, pre, post, options);
}

// Advances the presynaptic traces by one step. Before the first spike can arrive, they are unchanged.
void PlasticOperators::advance_traces(const at::Tensor& emitted) {
  PlasticConnections& c = connections_;
  const at::Tensor slot = emitted.remainder(c.slots()).view({1}), last = (emitted - 1).remainder(c.slots()).view({1});
  const at::Tensor has_begun = emitted.ge(0);
  const graph::Synapse& s = c.synapse();
  const at::TensorOptions of_traces = at::TensorOptions(c.dtype_).device(delays_.device());
  std::vector<at::Tensor> now;
  bool has_any = false;
  for (std::size_t i = 0; i < s.traces.size(); ++i) {
    now.push_back(s.traces[i].after ? at::empty({0}, of_traces) : c.after_[i].index_select(0, last).view({-1}));
    has_any = has_any || !s.traces[i].after;
  }
  if (!has_any) return;
  for (const ops::plastic::BoundRule::TraceDecay& decay : c.rule_.trace_decays()) {
    at::Tensor& trace = now[decay.trace];
    if (!s.traces[decay.trace].after)
      trace = at::where(has_begun, trace.sub(decay.target).mul_(decay.factor).add_(decay.target), trace);
  }
  const auto keep = [&](const std::vector<at::Tensor>& rings) {
    for (std::size_t i = 0; i < rings.size(); ++i)
      if (!s.traces[i].after) at::Tensor(rings[i]).index_copy_(0, slot, now[i].unsqueeze(0));
  };
  keep(c.before_);
  std::vector<at::Tensor> no_states;
  for (const at::Tensor& state : c.states_) no_states.push_back(at::empty({0}, state.options()));
  const at::Tensor fired = c.history_.index_select(0, emitted.remainder(c.history_.size(0)).view({1})).view({-1});
  plastic_step_(before_, no_states, now, unconnected_, no_columns_, fired, nobody_, {.params = c.described_.params});
  keep(c.after_);
}

// Returns the arriving sums, in the order of the connections, from the weights before they are updated for these
// spikes.
at::Tensor PlasticOperators::sums_of(const at::Tensor& pre, const at::Tensor& step) const {
  at::Tensor sums = at::zeros({1, lines_.cols}, at::TensorOptions(connections_.dtype_).device(delays_.device()));
  event_mv_delayed_(lines_, pre, at::zeros({1}, delays_.options().dtype(at::kByte)), sums, step,
                    {.transpose = true, .deterministic = true});
  return sums[0];
}

void PlasticOperators::arrive(const at::Tensor& step, const at::Tensor& arriving) {
  const PlasticConnections& c = connections_;
  advance_traces(step - c.shortest_);
  const at::Tensor pre = steps_ago(c.history_, step);
  at::Tensor sums = deterministic_ ? sums_of(pre, step) : at::Tensor();
  const at::Tensor sent =
      run(arrival_, traces(c.before_, step), pre, no_column_, {.step = step, .sends = !deterministic_});
  arriving.slice(0, c.first_column_, c.first_column_ + c.cols_).add_(deterministic_ ? sums : sent);
}

void PlasticOperators::fire(const at::Tensor& step, const at::Tensor& spikes) {
  PlasticConnections& c = connections_;
  const auto flags = [&](const NeuronRange& range) { return spikes.slice(0, range.begin, range.end).gt(0); };
  c.history_.index_copy_(0, step.remainder(c.history_.size(0)).view({1}), flags(c.described_.how.sources).unsqueeze(0));
  if (has_more_) run(after_, traces(c.after_, step), no_line_, flags(c.described_.how.targets), {.step = step});
}

void PlasticOperators::refresh(const at::Tensor& step) {
  const PlasticConnections& c = connections_;
  if (c.last_.defined()) run(after_, traces(c.after_, step), no_line_, no_column_, {.step = step, .refresh = true});
}

}  // namespace spikeforge::simulation
