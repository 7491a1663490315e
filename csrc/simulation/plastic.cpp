#include "csrc/simulation/internal/plastic.h"
#include "csrc/simulation/internal/matrix_layout.h"
#include "csrc/simulation/internal/plastic_operators.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/event.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace spikeforge::simulation {
PlasticConnections::PlasticConnections(const DescribedPlastic& described, const Description& description,
                                       std::int64_t columns, std::int64_t seed)
    : described_(described),
      rule_(described.rule, described.params, ops::dtype_of(description.dtype), "Network"),
      rows_(described.how.sources.end - described.how.sources.begin),
      cols_(described.how.targets.end - described.how.targets.begin),
      first_column_(described.input * description.size() + described.how.targets.begin),
      dtype_(description.dtype),
      on_cpu_(description.options.device.is_cpu()),
      deterministic_(description.options.deterministic) {
  connect(description, columns, seed);
  make_memory();
  if (!on_cpu_) return;
  for (at::Tensor& state : states_) state = in_large_pages(state);
  if (last_.defined()) last_ = in_large_pages(last_);
  matrix_.weights = states_[0];
  describe_to_cpu();
  step_.emplace(rule_, plain_);
}

PlasticConnections::~PlasticConnections() = default;

PlasticOperators& PlasticConnections::operators() {
  if (operators_ == nullptr) operators_ = std::make_unique<PlasticOperators>(*this, deterministic_);
  return *operators_;
}

void PlasticConnections::connect(const Description& description, std::int64_t columns, std::int64_t seed) {
  Projection p = described_.how;
  p.targets = {first_column_, first_column_ + cols_};
  matrix_ =
      spikeforge::connect(description.size(), columns, {p}, seed, description.weight_dtype, description.options.device);
  described_.forget_arrays();
  // Keeps only the rows of the sources, with columns from 0.
  matrix_.indptr = matrix_.indptr.slice(0, p.sources.begin, p.sources.end + 1).contiguous();
  matrix_.indices.sub_(first_column_);
  const std::int64_t nnz = matrix_.indices.numel();
  if (matrix_.weights.numel() != nnz) matrix_.weights = matrix_.weights.expand({nnz}).contiguous();
  if (nnz > 0) {
    shortest_ = matrix_.delays.min().item<std::int64_t>();
    longest_ = matrix_.delays.max().item<std::int64_t>();
  }
  sort_by_delay();
}

void PlasticConnections::describe_to_cpu() {
  const std::int64_t nnz = matrix_.indices.numel();
  const ByColumns by_columns = spikeforge::by_columns({matrix_.weights, matrix_.indices, matrix_.indptr, rows_, cols_});
  by_columns_ = in_large_pages(by_columns.indices);
  columns_begin_ = by_columns.indptr;
  slots_of_ = in_large_pages(by_columns.slots);
  plain_ = {.rows = {.indices = matrix_.indices.const_data_ptr<std::int32_t>(),
                     .indptr = matrix_.indptr.const_data_ptr(),
                     .wide_indptr = true,
                     .rows = rows_,
                     .cols = cols_,
                     .nnz = nnz},
            .columns = {.indices = by_columns_.const_data_ptr<std::int32_t>(),
                        .indptr = columns_begin_.const_data_ptr(),
                        .wide_indptr = true,
                        .rows = cols_,
                        .cols = rows_,
                        .nnz = nnz},
            .slots = slots_of_.const_data_ptr<std::int64_t>(),
            .columns_ascend = true,
            .delays = matrix_.delays.const_data_ptr(),
            .wide_delays = matrix_.delays.scalar_type() == at::kInt};
}

// Sorts connections by rows, delays and columns: connections of one delay are adjacent in a row, so that the spikes of
// each earlier step find theirs.
void PlasticConnections::sort_by_delay() {
  delays_ = {shortest_};
  const bool has_one = shortest_ == longest_;
  if (on_cpu_) sort_rows(matrix_);
  if (on_cpu_ && has_one) return;
  const at::Tensor counts = matrix_.indptr.diff();
  at::Tensor key = at::repeat_interleave(at::arange(rows_, matrix_.indptr.options()), counts);
  if (!has_one) key.mul_(longest_ + 1).add_(matrix_.delays);
  if (!on_cpu_) key.mul_(cols_).add_(matrix_.indices);  // on the CPU columns already ascend
  const at::Tensor order = at::argsort(key, /*stable=*/true, /*dim=*/0);
  matrix_.indices = matrix_.indices.index_select(0, order);
  matrix_.weights = matrix_.weights.index_select(0, order);
  if (has_one) return;
  matrix_.delays = matrix_.delays.index_select(0, order);
  const at::Tensor are =
      at::zeros({longest_ + 1}, at::kBool).index_fill_(0, matrix_.delays.to(at::kCPU, at::kLong), true);
  delays_.clear();
  for (std::int64_t d = shortest_; d <= longest_; ++d)
    if (are.const_data_ptr<bool>()[d]) delays_.push_back(d);
}

void PlasticConnections::make_memory() {
  const graph::Synapse& s = rule_.synapse();
  const std::int64_t nnz = matrix_.indices.numel();
  const auto options = at::TensorOptions(dtype_).device(matrix_.indices.device());
  states_.push_back(matrix_.weights);
  for (std::size_t i = 1; i < s.states.size(); ++i) states_.push_back(at::full({nnz}, s.states[i].initial, options));
  if (s.states_decay()) last_ = at::full({nnz}, -1, options.dtype(at::kInt));
  for (const graph::Trace& trace : s.traces) {
    after_.push_back(trace.after ? at::full({cols_}, trace.initial, options)
                                 : at::full({slots(), rows_}, trace.initial, options));
    before_.push_back(trace.after ? at::Tensor() : after_.back().clone());
  }
  history_ = at::zeros({longest_ + 1, rows_}, options.dtype(at::kBool));
  lists_.resize(static_cast<std::size_t>(longest_ + 1));
  offsets_.resize(static_cast<std::size_t>(longest_ + 1));
  for (std::size_t i = 0; i < s.signals.size(); ++i)
    signals_.push_back(on_cpu_ ? at::Tensor() : at::zeros({cols_}, options));
  comes_.resize(s.signals.size());
}

ops::plastic::Memory PlasticConnections::memory(std::int64_t step) const {
  ops::plastic::Memory memory;
  memory.states = rule_.states();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    memory.states[i].data = states_[i].mutable_data_ptr();
    memory.states[i].type = ops::dtype_of(states_[i].scalar_type());
  }
  for (std::size_t i = 0; i < after_.size(); ++i)
    memory.traces.push_back({after_[i].mutable_data_ptr(), rule_.synapse().traces[i].after});
  for (const at::Tensor& signal : signals_)
    memory.signals.push_back(
        {signal.defined() ? signal.const_data_ptr() : nullptr, signal.defined() && signal.dim() == 1});
  if (last_.defined()) memory.last = static_cast<std::uint32_t*>(last_.mutable_data_ptr());
  memory.now = static_cast<std::uint32_t>(step);
  if (slots() > 1) memory.trace_offsets = offsets_.data();
  return memory;
}

// Advances the presynaptic traces by one step. They lag the network by the shortest delay.
void PlasticConnections::advance_traces(std::int64_t emitted) {
  ops::plastic::Memory now = memory(emitted);
  now.trace_offsets = nullptr;
  const std::int64_t slot = emitted % slots(), last = (emitted + slots() - 1) % slots();
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!before_[i].defined()) continue;
    before_[i].select(0, slot).copy_(after_[i].select(0, last));
    now.traces[i].data = before_[i].select(0, slot).mutable_data_ptr();
  }
  step_->decay(now, /*after=*/false, rows_);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!before_[i].defined()) continue;
    after_[i].select(0, slot).copy_(before_[i].select(0, slot));
    now.traces[i].data = after_[i].select(0, slot).mutable_data_ptr();
  }
  step_->change_traces(now, /*after=*/false, lists_[static_cast<std::size_t>(emitted % (longest_ + 1))]);
}

void PlasticConnections::arrive(std::int64_t step, void* columns) {
  ops::plastic::Memory now = memory(step);
  step_->decay(now, /*after=*/true, cols_);
  const std::int64_t emitted = step - shortest_;
  if (emitted < 0) return;
  advance_traces(emitted);
  for (const std::int64_t d : delays_)
    offsets_[static_cast<std::size_t>(d)] = (emitted - (d - shortest_) + 2 * slots()) % slots() * rows_;
  for (std::size_t i = 0; i < before_.size(); ++i)
    if (before_[i].defined()) now.traces[i].data = before_[i].mutable_data_ptr();

  segments_.clear();
  const auto find = [&](const auto* delays) {
    for (const std::int64_t d : delays_) {
      if (step < d) continue;
      for (const std::int32_t row : lists_[static_cast<std::size_t>((step - d) % (longest_ + 1))]) {
        std::int64_t begin = plain_.rows.begin(row), end = plain_.rows.end(row);
        if (slots() > 1) {
          const auto [first, last] = std::equal_range(delays + begin, delays + end, d);
          begin = first - delays;
          end = last - delays;
        }
        segments_.add(row, begin, end);
      }
    }
  };
  if (plain_.wide_delays)
    find(static_cast<const std::int32_t*>(plain_.delays));
  else
    find(static_cast<const std::uint8_t*>(plain_.delays));
  const auto bytes = static_cast<std::int64_t>(size_of(ops::dtype_of(dtype_)));
  step_->arrive(now, segments_, static_cast<char*>(columns) + first_column_ * bytes);
}

void PlasticConnections::fire(std::int64_t step, const std::vector<std::int64_t>& fired, std::int64_t first) {
  const std::int64_t slot = step % (longest_ + 1);
  std::vector<std::int32_t>& rows = lists_[static_cast<std::size_t>(slot)];
  rows.clear();
  bool* const flags = history_.mutable_data_ptr<bool>() + slot * rows_;
  std::fill_n(flags, rows_, false);
  fired_columns_.clear();
  const NeuronRange& sources = described_.how.sources;
  const NeuronRange& targets = described_.how.targets;
  for (const std::int64_t number : fired) {
    const std::int64_t neuron = number - first;
    if (sources.begin <= neuron && neuron < sources.end) {
      rows.push_back(static_cast<std::int32_t>(neuron - sources.begin));
      flags[neuron - sources.begin] = true;
    }
    if (targets.begin <= neuron && neuron < targets.end)
      fired_columns_.push_back(static_cast<std::int32_t>(neuron - targets.begin));
  }
  const ops::plastic::Memory now = memory(step);
  step_->fire(now, fired_columns_);
  step_->change_traces(now, /*after=*/true, fired_columns_);
  step_->modulate(now, comes_);
}

void PlasticConnections::set_signal(std::size_t number, const at::Tensor& value) {
  if (!on_cpu_) {
    signals_[number].copy_(value.detach().expand({cols_}));
    return;
  }
  signals_[number] = value.defined() ? value.detach().to(dtype_).contiguous().clone() : at::Tensor();
  comes_[number] = value.defined() && signals_[number].count_nonzero().item<std::int64_t>() > 0;
}

Learned PlasticConnections::learned(std::int64_t step) {
  if (step > 0 && on_cpu_) step_->refresh(memory(step - 1));
  if (step > 0 && !on_cpu_) operators().refresh(at::scalar_tensor(step - 1, at::kLong));
  const graph::Synapse& s = rule_.synapse();
  Learned learned{.matrix = matrix_, .states = {}, .traces = {}};
  for (std::size_t i = 0; i < s.states.size(); ++i) learned.states.emplace_back(s.states[i].name, states_[i]);
  const std::int64_t seen = std::max<std::int64_t>(step - 1 - shortest_, 0) % slots();
  for (std::size_t i = 0; i < s.traces.size(); ++i)
    learned.traces.emplace_back(s.traces[i].name, s.traces[i].after ? after_[i] : after_[i].select(0, seen));
  return learned;
}

bool PlasticConnections::are_there() const {
  return std::ranges::all_of(states_, [](const at::Tensor& t) { return t.storage().nbytes() >= t.nbytes(); });
}

std::vector<at::Tensor> PlasticConnections::changing() const {
  std::vector<at::Tensor> tensors = states_;
  if (last_.defined()) tensors.push_back(last_);
  for (const at::Tensor& trace : before_)
    if (trace.defined()) tensors.push_back(trace);
  tensors.insert(tensors.end(), after_.begin(), after_.end());
  tensors.push_back(history_);
  return tensors;
}

void PlasticConnections::loaded() {
  if (!on_cpu_) return;
  const bool* flags = history_.const_data_ptr<bool>();
  for (std::vector<std::int32_t>& rows : lists_) {
    rows.clear();
    for (std::int64_t i = 0; i < rows_; ++i)
      if (*flags++) rows.push_back(static_cast<std::int32_t>(i));
  }
}

}  // namespace spikeforge::simulation
